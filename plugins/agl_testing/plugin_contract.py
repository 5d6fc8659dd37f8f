"""The contract of every plugin, independent of what it registers.

::

    class TestMine(PluginContract):
        plugin = "agl_mine.plugin"
        frameworks = ("mine",)
"""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, ClassVar, Final, get_args, get_origin

import click
from pydantic import BaseModel, ValidationError

from agl_core.errors import MissingExtraError, PluginError
from agl_core.plugins import (
    KINDS,
    PROJECT,
    PluginManager,
    Registration,
    Registry,
    Source,
    hook_names,
    installed,
    source_of,
)
from agl_testing._guard import ContractSuite

__all__ = ["PluginContract"]

GRPO_LOSS: Final[Mapping[str, Any]] = {"clip_low": 0.2, "clip_high": 0.2, "ratio": "token"}
"""Options that the algorithm ``grpo`` gives to the loss ``policy_gradient`` of any engine."""
_LOAD: Final = """\
import importlib, sys
from agl_core.plugins import PluginManager
from agl_core.plugins import Source
plugin = importlib.import_module(sys.argv[1])
PluginManager(environ={}).register(plugin, Source(name="plugin"))
print(" ".join(sorted(set(sys.argv[2:]) & set(sys.modules))))
"""


class PluginContract(ContractSuite):
    """Contract suite of plugins: supply `plugin`, and `frameworks` if there are any."""

    plugin: ClassVar[str]
    """Import name of the module in the entry point."""
    frameworks: ClassVar[tuple[str, ...]] = ()
    """Import names that loading the plugin must not import; only a chosen component may."""

    def test_it_loads_and_offers_or_observes_something(self) -> None:
        manager = self._loaded()
        (info,) = manager.plugins()
        assert info.state != "broken", info.detail
        assert info.registers or info.observes, f"{self.plugin} implements no hook"

    def test_every_function_named_like_a_hook_is_one(self) -> None:
        for name, function in vars(self._module()).items():
            if name.startswith("agl_") and inspect.isfunction(function):
                assert hasattr(function, f"{PROJECT}_impl"), f"{name} lacks @agl_core.hookimpl"
                assert name in hook_names(), f"there is no hook {name!r}"

    def test_loading_it_imports_no_framework(self) -> None:
        done = subprocess.run(  # noqa: S603  our own interpreter and code
            [sys.executable, "-c", _LOAD, self.plugin, *self.frameworks],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not done.stdout.split(), f"loading {self.plugin} imports {done.stdout.strip()}"

    def test_every_target_can_be_had_or_names_its_pip_line(self) -> None:
        for registry, entry in self._offers():
            target = _had(registry.resolve, entry.name)
            if ".--" in entry.name and target is not None:
                assert isinstance(target(), click.Option), f"{entry.target} makes no click option"
            elif registry.kind == "commands" and target is not None:
                assert isinstance(target, click.Command), f"{entry.target} is no click command"
            assert target is None or callable(target), f"{entry.target} cannot be called"

    def test_every_offer_has_a_summary_of_one_line(self) -> None:
        for _, entry in self._offers():
            summary = entry.summary.strip()
            assert summary, f"{entry.name} has no summary for `agl plugins`"
            assert "\n" not in summary, f"the summary of {entry.name} has several lines"

    def test_every_option_is_documented(self) -> None:
        for entry, model in self._options():
            bare = [name for name, field in model.model_fields.items() if not field.description]
            assert not bare, (
                f"options of {entry.name}: {model.__name__} has no docstring for {bare}"
            )

    def test_its_policy_gradient_takes_the_options_of_grpo(self) -> None:
        for registry, entry in self._offers():
            if registry.kind == "losses" and entry.name.endswith(".policy_gradient"):
                assert entry.config, (
                    f"register {entry.name} with config=: grpo gives it {GRPO_LOSS}"
                )
                model = _had(registry.options_model, entry.name)
                if model is None:
                    continue
                try:
                    registry.create(entry.name, model.model_validate(GRPO_LOSS))
                except ValidationError as error:
                    raise AssertionError(
                        f"{entry.name} refuses the options of grpo: {error}"
                    ) from error

    def test_unknown_options_are_refused(self) -> None:
        for entry, model in self._options():
            assert model.model_config.get("extra") == "forbid", (
                f'options of {entry.name}: {model.__name__} takes unknown keys; set extra="forbid"'
            )

    def _module(self) -> ModuleType:
        return importlib.import_module(self.plugin)

    def _loaded(self) -> PluginManager:
        manager = PluginManager(environ={})
        manager.register(self._module(), self._source())
        return manager

    def _source(self) -> Source:
        """Return the distribution that ships the plugin, if it is installed."""
        for entries in installed().values():
            for entry in entries:
                if entry.module == self.plugin:
                    return source_of(entry)
        return Source(name=self.plugin)

    def _offers(self) -> Iterator[tuple[Registry, Registration]]:
        manager = self._loaded()
        for kind in KINDS:
            registry = manager.registry(kind)
            for entry in registry.registrations():
                yield registry, entry

    def _options(self) -> Iterator[tuple[Registration, type[BaseModel]]]:
        """Yield every options model, including nested ones, whose framework is installed."""
        for registry, entry in self._offers():
            model = _had(registry.options_model, entry.name)
            if model is not None:
                yield from ((entry, each) for each in _with_nested(model))


def _had(ask: Callable[[str], Any], name: str) -> Any:
    """Return the result of `ask`; None if a framework is missing and the error has a pip line."""
    try:
        return ask(name)
    except MissingExtraError as error:
        lacking = str(error)
    except PluginError as error:
        raise AssertionError(str(error)) from error
    assert "pip install " in lacking, f"no pip line: {lacking}"
    return None


def _with_nested(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        for part in _parts(field.annotation):
            if isinstance(part, type) and get_origin(part) is None and issubclass(part, BaseModel):
                yield from _with_nested(part)


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)
