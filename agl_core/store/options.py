"""The base class of stores' options, those of the embedded stores, and the options of a section."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    PositiveFloat,
    SecretBytes,
    SecretStr,
    field_validator,
)

from agl_core.config import RunConfig, StoreConfig, check_options, validate
from agl_core.config.validation import keys_at, local_path, scheme_of
from agl_core.errors import ConfigError, PluginError
from agl_core.interfaces import StoreLifecycle
from agl_core.plugins import PluginManager
from agl_core.store._base import Retention

STORE_FILE: Final = "store.db"
"""Name of the database in a run's directory, unless ``store.path`` gives another."""
STORE_URL: Final = "AGL_STORE_URL"
"""Environment variable with the address of the store of runs that configure none."""
_ADDRESSES: Final = (
    "the store 'sqlite' takes a file on this machine; a store with an address takes it as url, "
    "under the name of that store (agl plugins lists the stores)"
)


class StoreOptions(BaseModel):
    """Base of the options of a store: ``register(name, factory, config=MyOptions)``.

    The factory is called as ``factory(options, directory)``. The attributes below describe the
    store without opening it. The defaults describe a database server: its records survive the
    process, several processes can open it, and it is not a file. The defaults also apply to options
    that derive from another pydantic class.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    kept: ClassVar[bool] = True
    """Whether the records survive the process."""
    shared: ClassVar[bool] = True
    """Whether several processes can have the store open."""
    schemes: ClassVar[tuple[str, ...]] = ()
    """Schemes of the addresses that the option ``url`` takes. ``agl store ls SCHEME://…`` and other
    commands that take a store choose the store by them."""

    @property
    def address(self) -> str | None:
        """Address of the server that keeps the records: the option ``url``; None without it.

        Keys and passwords are sent only to an address that the user gave.
        """
        return getattr(self, "url", None)

    def file(self, directory: Path) -> Path | None:
        """Return the file with the records of a run in `directory`; None if there is none."""
        del directory
        return None

    def apart(self) -> Self | None:
        """Return options of a separate, empty store of this kind in the factory's directory.

        Evaluations use this store. If the result is None, they use the default store.
        """
        return None


class BaseStoreOptions(StoreOptions):
    """Base of the options of a store that derives from `BaseStore`."""

    retention: Retention = "keep"
    """What becomes of a rollout's spans once it is consumed."""


class SqliteOptions(BaseStoreOptions):
    """Options of the store ``sqlite``."""

    path: str | None = None
    """Database file; ``store.db`` in the run's directory when None. Evaluations always keep theirs
    in the run's folder ``eval``."""
    synchronous: Literal["normal", "full"] = "normal"
    """``full`` also survives a power cut; ``normal`` survives a crash of the program."""
    busy_timeout_s: PositiveFloat = 30.0
    """How long to wait for another process that writes to the same file."""

    @field_validator("path", mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        """Take an integer as its text: ``--set store.path=2026`` is a name."""
        if isinstance(given, float):
            raise ValueError(f"{given} is a number: quote the name of the file")  # noqa: TRY004
        return str(given) if type(given) is int else given

    @field_validator("path")
    @classmethod
    def _absolute(cls, given: str | None) -> str | None:
        """Make the path absolute, so that a stored configuration works in any directory."""
        return given and str(Path(local_path(given, instead=_ADDRESSES)).absolute())

    def file(self, directory: Path) -> Path:
        return Path(self.path or directory / STORE_FILE)

    def apart(self) -> Self:
        return self.model_copy(update={"path": None})


class MemoryOptions(BaseStoreOptions):
    """Options of the store ``memory``."""

    kept = False
    shared = False

    def apart(self) -> Self:
        return self


def store_of(config: RunConfig, plugins: PluginManager) -> StoreConfig:
    """Return a run's section of its store, named by its address if it states only that.

    A configuration without the section has the address in the environment variable
    ``AGL_STORE_URL``, if it is set.

    Raises:
        ConfigError: no store takes the address in the environment variable.
    """
    section, url = config.store, os.environ.get(STORE_URL)
    if "store" not in config.model_fields_set and url:
        if not _takers(url, plugins):
            known = sorted(each for taken in store_schemes(plugins).values() for each in taken)
            raise ConfigError(
                f"{STORE_URL} is {without_password(url)!r}, which no store takes: an address "
                f"begins with one of {', '.join(f'{each}://' for each in known)}"
            )
        section = StoreConfig.model_validate({"url": url})
    address = section.options.get("url")
    if "name" in section.model_fields_set or not isinstance(address, str):
        return section
    able = _takers(address, plugins)
    return section.model_copy(update={"name": able[0]}) if len(able) == 1 else section


def _takers(address: str, plugins: PluginManager) -> list[str]:
    """Return the stores that take an address."""
    scheme = scheme_of(address).lower()
    return [name for name, taken in store_schemes(plugins).items() if scheme in taken]


def store_options(config: StoreConfig, plugins: PluginManager) -> BaseModel | None:
    """Return the options of a section, validated by the store's model; None if it has no model.

    Null for an option that only other stores have is no option, so that an override can both
    choose a store and remove an option of the previous one, such as ``store.url=null``.

    Raises:
        ConfigError: the store or an option is unknown.
        PluginError: the store's options cannot be imported.
    """
    model = plugins.registry("stores").options_model(config.name)
    if model is None or model.model_config.get("extra") != "allow":
        names = plugins.registry("stores").names()
        others = {key for name in names for key in _keys(_model(name, plugins))}
        foreign = others - _keys(model)
        kept = {k: v for k, v in config.options.items() if v is not None or k not in foreign}
        config = StoreConfig.model_validate({**kept, "name": config.name})
    if model is not None and "url" in config.options and "url" not in model.model_fields:
        _refuse_address(config, plugins)
    return check_options(config, model, where="store")


def _keys(model: type[BaseModel] | None) -> set[str]:
    return {*keys_at(model, ()), *model.model_fields} if model is not None else set()


def _refuse_address(config: StoreConfig, plugins: PluginManager) -> None:
    """Raise an error if a store other than the configured one takes the option ``url``.

    Raises:
        ConfigError: another store takes the address.
    """
    address = config.options["url"]
    able = _takers(address, plugins) if isinstance(address, str) else []
    if able:
        raise ConfigError(
            f"Configuration: store.url = {without_password(address)!r}: the store {config.name!r} has no url; "
            f"name = {able[0]!r} takes this address"
        )


def layered(
    store: StoreLifecycle, sections: Mapping[str, Any], plugins: PluginManager
) -> StoreLifecycle:
    """Return the store inside its layers, in the order of `agl_register_layers`.

    Args:
        store: The store that its factory made.
        sections: `RunConfig.sections`; empty where no configuration is at hand.
        plugins: The loaded plugins.

    Raises:
        ConfigError: an option of a layer is wrong, or it cannot be used.
        PluginError: a layer cannot be imported, or lacks a library.
    """
    layers = plugins.registry("layers")
    models = {name: layers.options_model(name) for name in layers.names()}
    for name in sorted(models, key=lambda each: (getattr(models[each], "order", 0), each)):
        if name in sections or getattr(models[name], "always", False):
            model = models[name] if name in sections else None
            options = validate(model, sections[name], where=name) if model else None
            store = layers.create(name, options, store)
    return store


def described(options: BaseModel | None) -> StoreOptions:
    """Return the options as `StoreOptions`; the defaults if they have another base class."""
    return options if isinstance(options, StoreOptions) else StoreOptions()


def store_section(name: str, options: BaseModel | None) -> StoreConfig:
    """Return the configuration section that results in these options."""
    given = options.model_dump(exclude_unset=True, by_alias=True) if options is not None else {}
    return StoreConfig.model_validate({**_revealed(given), "name": name})


def _revealed(value: Any) -> Any:
    """Return a value with the text of its secrets, which a stored section must contain."""
    if isinstance(value, SecretStr | SecretBytes):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {key: _revealed(each) for key, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_revealed(each) for each in cast("list[Any]", value)]
    return value


def store_schemes(plugins: PluginManager) -> dict[str, tuple[str, ...]]:
    """Return `StoreOptions.schemes` by the names of the registered stores."""
    names = plugins.registry("stores").names()
    return {name: getattr(_model(name, plugins), "schemes", ()) for name in names}


def _model(name: str, plugins: PluginManager) -> type[BaseModel] | None:
    with suppress(PluginError):  # a store whose plugin cannot be imported cannot be used
        return plugins.registry("stores").options_model(name)
    return None


def without_password(address: str) -> str:
    """Return an address without its user and password, for messages."""
    return re.sub(r"(://)[^/\s]*@", r"\1***@", address)
