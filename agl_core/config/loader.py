"""Reading a file and overrides into a validated `RunConfig`, and writing it as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, TypeVar, cast, overload

from pydantic import BaseModel, ValidationError

from agl_core.config._models import (
    AlgorithmConfig,
    EngineConfig,
    PhaseConfig,
    RewardConfig,
    RunConfig,
    StoreConfig,
    TrackerConfig,
)
from agl_core.config.rows import is_row_file
from agl_core.config.text import Override, parse_override, put, read_config
from agl_core.config.validation import (
    SECRET,
    dotted,
    keys_at,
    real_path,
    section_key,
    unknown_key,
    validate,
    with_sections,
)
from agl_core.errors import ConfigError
from agl_core.files import write_private

RESOLVED: Final = "config.json"
"""Name of the resolved configuration in a run's directory."""

M = TypeVar("M", bound=BaseModel)
NamesPlugin = (
    EngineConfig | AlgorithmConfig | PhaseConfig | RewardConfig | StoreConfig | TrackerConfig
)
"""A section that names a plugin; its further keys are the plugin's options."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a TOML, YAML or JSON file and apply ``key=value`` overrides.

    Relative paths in the configuration (agent, tasks, rewards, plugins, and models that start with
    a dot) are relative to the folder of the configuration file; in overrides, to the working
    directory.

    Raises:
        ConfigError: the file or an override is wrong; the message names key, value and fix.
    """
    return resolve(read_anchored(path), overrides)


def read_anchored(path: str | Path) -> dict[str, Any]:
    """Read a configuration file as plain data, with paths relative to the file's folder.

    Raises:
        ConfigError: the file cannot be read.
    """
    file = Path(path)
    data = read_config(file)
    _anchor(data, file.resolve().parent)
    return data


def resolve(data: Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """Apply ``key=value`` overrides to plain data and validate it.

    An override's text is converted to the type of its field: ``1e-6`` is a number for
    `algorithm.lr` and text for `name`, ``false`` is a boolean for `train.resume`. Paths relative to
    the working directory become absolute, so that the stored configuration does not depend on it.

    Raises:
        ConfigError: the message names every wrong key with its value and the nearest valid key.
    """
    parsed = [parse_override(text) for text in overrides]
    as_values = _with(data, parsed, raw=frozenset())
    rejected = _rejected(as_values, parsed)
    if not rejected:
        return validate(RunConfig, as_values)
    still = _rejected(_with(data, parsed, raw=rejected), parsed)
    return validate(RunConfig, _with(data, parsed, raw=rejected - still))


def with_plugins(config: RunConfig, files: Iterable[str]) -> RunConfig:
    """Return the configuration with further local plugin files, each file once.

    Relative paths are relative to the working directory.
    """
    paths = [str(Path(file).expanduser().resolve()) for file in (*config.plugins, *files)]
    return config.model_copy(update={"plugins": list(dict.fromkeys(paths))})


def dump(config: RunConfig) -> str:
    """Return the resolved configuration as JSON text for `load_config`."""
    return config.model_dump_json(indent=2) + "\n"


def save_config(config: RunConfig, directory: Path) -> Path:
    """Write `dump` into a run's directory, with `directory` as an absolute path.

    Returns:
        The file, which does not depend on the working directory.
    """
    place = {"directory": str(Path(config.directory).absolute())}
    target = directory / RESOLVED
    write_private(target, dump(config.model_copy(update=place)).encode())
    return target


@overload
def check_options(section: NamesPlugin, model: None, *, where: str) -> None: ...
@overload
def check_options(section: NamesPlugin, model: type[M], *, where: str) -> M: ...
@overload
def check_options(section: NamesPlugin, model: type[M] | None, *, where: str) -> M | None: ...
def check_options(section: NamesPlugin, model: type[M] | None, *, where: str) -> M | None:
    """Validate a section's plugin keys against the model its plugin registered.

    Args:
        section: A section that names a plugin.
        model: The registered options; None when the plugin takes none.
        where: The section's path, for messages: ``"engine"``, ``"rewards.0"``.

    Raises:
        ConfigError: a key is unknown (the message suggests one), or a value is wrong.
    """
    own = list(type(section).model_fields)
    target = model or _NoOptions
    if target.model_config.get("extra") != "allow":
        # A misspelt key is never ignored, even if the plugin's model ignores unknown keys.
        known = {*keys_at(target, ()), *target.model_fields}
        unknown = [key for key in section.options if key not in known]
        if unknown:
            messages = [unknown_key((key,), target, where=where, also=own) for key in unknown]
            raise ConfigError(f"Configuration: {'; '.join(messages)}")
    return validate(model, section.options, where=where, also=own) if model else None


class _NoOptions(BaseModel):
    """The options of a plugin without options."""


def _with(
    data: Mapping[str, Any], overrides: Sequence[Override], *, raw: frozenset[tuple[str, ...]]
) -> dict[str, Any]:
    merged = with_sections(deepcopy(dict(data)))
    for override in overrides:
        value = override.raw if override.path in raw else override.value
        put(merged, section_key(override.path, value), value)
    _anchor(merged, Path.cwd())
    return merged


def _rejected(data: Mapping[str, Any], overrides: Sequence[Override]) -> frozenset[tuple[str, ...]]:
    """Return the paths of overrides with a value that is not text and that the model refuses."""
    try:
        RunConfig.model_validate(data)
    except ValidationError as error:
        wrong = {dotted(real_path(detail, data)) for detail in error.errors(include_url=False)}
        return frozenset(
            override.path
            for override in overrides
            if not isinstance(override.value, str) and dotted(override.path) in wrong
        )
    return frozenset()


def _anchor(data: dict[str, Any], folder: Path) -> None:
    """Make the paths in a configuration absolute."""
    _anchor_key(data, "agent", folder)
    for tasks in _tables([data.get("tasks")]):
        for key in ("train", "val"):
            _anchor_key(tasks, key, folder, rows=True)
    for reward in _tables(data.get("rewards")):
        _anchor_key(reward, "name", folder)
    for section in (*_tables(data.get("optimizers")), *_tables(data.get("phases"))):
        for model in _tables(section):
            _anchor_key(model, "function", folder)
    for table in _tables([*_tables(data.get("prompts")), data.get("gateway")]):
        _anchor_files(table, folder)
    if isinstance(plugins := data.get("plugins"), list):
        data["plugins"] = [_anchored(item, folder) for item in cast("list[Any]", plugins)]
    for table in (data, *_tables(data.get("policies"))):
        _anchor_model(table, folder)


def _tables(section: Any) -> list[dict[str, Any]]:
    """Return the tables of a section, which may be malformed."""
    if isinstance(section, dict):
        section = [*cast("dict[str, Any]", section).values()]
    rows = cast("list[Any]", section) if isinstance(section, list) else []
    return [cast("dict[str, Any]", row) for row in rows if isinstance(row, dict)]


def _anchor_key(table: dict[str, Any], key: str, folder: Path, *, rows: bool = False) -> None:
    if key in table:
        table[key] = _anchored(table[key], folder, rows=rows)


def _anchor_files(table: dict[str, Any], folder: Path) -> None:
    for key in {"file", "tls_cert", "tls_key"} & table.keys():
        if isinstance(file := table[key], str):
            table[key] = str(folder / Path(file).expanduser())


def _anchor_model(table: dict[str, Any], folder: Path) -> None:
    model = table.get("model")
    if isinstance(model, str) and model.startswith("."):
        table["model"] = str(folder / model)


def _anchored(value: Any, folder: Path, *, rows: bool = False) -> Any:
    """Make a ``file.py:attribute``, a ``.py`` file or, with `rows`, a file of rows absolute."""
    if not isinstance(value, str):
        return value
    location = value.rpartition(":")[0] or value
    if (rows and is_row_file(value)) or location.endswith(".py") or value.endswith(".py"):
        return str(folder / Path(value).expanduser())
    return value


_BLANK: Final = "***"
_LOGIN: Final = re.compile(r"(\w://)[^/@\s]+@")
"""User name and password in an address."""


def without_secrets(config: RunConfig) -> dict[str, Any]:
    """Return a configuration as plain data, with the text of keys that name a secret blanked out.

    The value of a key that ends in ``_env`` is the name of an environment variable, not a secret.
    """
    return {key: _shown(key, value) for key, value in config.model_dump(mode="json").items()}


def _shown(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, Any]", value)
        return {name: _shown(name, each) for name, each in inner.items()}
    if isinstance(value, list):
        return [_shown(key, each) for each in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    if SECRET.search(key) and not key.endswith("_env"):
        return _BLANK
    return _LOGIN.sub(rf"\1{_BLANK}@", value)
