"""The base class of stores' options, and the options of the embedded stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, PositiveFloat, field_validator

from agl_core.config.models import local_path
from agl_core.store._base import Retention

STORE_FILE: Final = "store.db"
"""Name of the database in a run's directory, unless ``store.path`` gives another."""
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
