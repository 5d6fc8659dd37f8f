"""Options of the engine, which are read before its libraries are imported."""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveInt

from agl_core.config import EngineOptions
from agl_core.errors import ConfigError


class TemplateOptions(EngineOptions):
    """Options of the engine ``template``."""

    max_tokens: PositiveInt = 64
    """Longest answer of a request that names no limit."""

    def check_model(self, model: str) -> None:
        """Refuse a path that does not exist.

        Raises:
            ConfigError: there is no such directory.
        """
        if not Path(model).is_dir():
            raise ConfigError(f"Model {model!r} is no directory: check 'model'")
