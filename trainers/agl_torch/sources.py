"""Where a model is: a directory, or a name on the hub. Imports no library of models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from agl_core.errors import ConfigError

ADAPTER: Final = "adapter"
"""Directory of an adapter, in peft's format, below that of the policy's tokenizer."""


def is_adapter(directory: Path) -> bool:
    """Whether a policy's directory holds an adapter without the model it belongs to."""
    alone = not (directory / "config.json").exists()
    return alone and (directory / ADAPTER / "adapter_config.json").is_file()


def check_source(source: str) -> None:
    """Refuse a path that leads nowhere before the hub is asked for it.

    Raises:
        ConfigError: there is no model, or no directory of one.
    """
    if not source:
        raise ConfigError("A policy has no model: set 'model', or 'model' of the policy")
    looks_local = source.startswith((".", "~", os.sep)) or source.count("/") > 1
    path = Path(source)
    if path.is_dir():
        if not (path / "config.json").is_file() and not is_adapter(path):
            raise ConfigError(f"Model directory {source!r} has no config.json: is it a model's?")
    elif looks_local or path.exists():
        raise ConfigError(f"Model path {source!r} is no directory: check 'model'")
