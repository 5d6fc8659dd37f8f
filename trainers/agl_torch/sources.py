"""Checks of a model's directory or hub name, without importing torch or transformers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from agl_core.errors import ConfigError

ADAPTER: Final = "adapter"
"""Subdirectory of a policy's directory with its adapter in peft's format."""


def is_adapter(directory: Path) -> bool:
    """Return whether a policy's directory has an adapter but not its base model."""
    alone = not (directory / "config.json").exists()
    return alone and (directory / ADAPTER / "adapter_config.json").is_file()


def check_source(source: str) -> None:
    """Check a model's path before it is requested from the hub.

    Raises:
        ConfigError: the name is empty, or the path is not a model's directory.
    """
    if not source:
        raise ConfigError("A policy has no model: set 'model', or 'model' of the policy")
    looks_local = source.startswith((".", "~", os.sep)) or source.count("/") > 1
    path = Path(source)
    if path.is_dir():
        if not (path / "config.json").is_file() and not is_adapter(path):
            raise ConfigError(f"Model directory {source!r} has no config.json: is it a model's?")
    elif looks_local or path.exists():
        raise ConfigError(
            f"Model path {source!r} is no directory: check 'model' of the run and its policies"
        )
