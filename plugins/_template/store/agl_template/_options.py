"""Options of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import field_validator

from agl_core.store import BaseStoreOptions


class TemplateOptions(BaseStoreOptions):
    """Options of the store ``template``."""

    shared = False
    """False: the store is open in one process only. Delete it for a database server."""

    path: str | None = None
    """The file; ``records.template`` in the run's directory when None."""

    @field_validator("path")
    @classmethod
    def _absolute(cls, given: str | None) -> str | None:
        return given and str(Path(given).absolute())

    def file(self, directory: Path) -> Path:
        """Return the file with the records; only for a store in a file."""
        return Path(self.path or directory / "records.template")

    def apart(self) -> Self:
        """Return options of another, empty store, for the records of an evaluation."""
        return self.model_copy(update={"path": None})
