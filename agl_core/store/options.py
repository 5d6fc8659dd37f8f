"""What a store's options say about it, and the options of the embedded stores."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, PositiveFloat, field_validator

from agl_core.config.models import local_path
from agl_core.store.base import Retention

STORE_FILE: Final = "store.db"
"""Name of the database in a run's directory, unless ``store.path`` gives another."""
_ADDRESSES: Final = (
    "the store 'sqlite' takes a file on this machine; a store with an address takes it as url, "
    "under the name of that store (agl plugins lists the stores)"
)


class StoreOptions(BaseModel):
    """Base of the options of a store: ``register(name, factory, config=MyOptions)``.

    The factory is called as ``factory(options, directory)``. What is declared below says what the
    program must know about a store without opening it. The defaults describe a database server:
    its records are kept, processes share it, it is no file. Options that derive from another
    pydantic class have these defaults, too.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        coerce_numbers_to_str=True,  # --set store.path=2026 is a name
    )

    kept: ClassVar[bool] = True
    """Whether the records outlive the process."""
    shared: ClassVar[bool] = True
    """Whether several processes can have the store open."""
    schemes: ClassVar[tuple[str, ...]] = ()
    """Schemes of the addresses that the option ``url`` takes. ``agl store ls SCHEME://…`` and other
    commands that take a store choose the store by them."""

    @property
    def address(self) -> str | None:
        """Where the records are kept, if that is a server: the option ``url``, if there is one.

        Keys and passwords are only sent to an address that the user names.
        """
        return getattr(self, "url", None)

    def file(self, directory: Path) -> Path | None:
        """The file with the records of a run in `directory`; None where there is no such file."""
        del directory
        return None

    def apart(self) -> Self | None:
        """Options of another store of this kind, empty and in the directory its factory is given.

        Evaluations keep their records in one. None: they use the default store.
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

    @field_validator("path")
    @classmethod
    def _absolute(cls, given: str | None) -> str | None:
        """What is stored with a run means the same from every working directory."""
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
