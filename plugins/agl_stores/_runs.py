"""Functions that find a run by its directory or name, and its best checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from agl_core.config import RESOLVED, RunConfig
from agl_core.errors import ConfigError

_REPORT: Final = "report.json"
_STATE: Final = "state.json"
"""File of a complete checkpoint."""


def run_directory(target: str) -> Path:
    """Return the directory of a run.

    Args:
        target: The directory, or the name of a run in the default directory of runs.

    Raises:
        ConfigError: there is no such directory, or it is not that of a run.
    """
    given = Path(target).expanduser()
    named = Path(RunConfig.model_fields["directory"].default) / target
    found = [path for path in (given, named) if (path / RESOLVED).is_file()]
    if found:
        return found[0]
    raise ConfigError(
        f"{target!r} is not a run: neither {str(given)!r} nor {str(named)!r} is a directory with a "
        f"{RESOLVED}. Name a run's directory, or a run below {str(named.parent)!r}"
    )


def is_checkpoint(directory: Path) -> bool:
    """Return whether a directory is a complete checkpoint."""
    return (directory / _STATE).is_file()


def best_checkpoint(directory: Path) -> Path | None:
    """Return a run's best checkpoint: that of its report, or the newest one without a report.

    Args:
        directory: The run's directory; the run may be active.

    Returns:
        None if the run has no complete checkpoint.
    """
    checkpoints = directory / "checkpoints"
    best = checkpoints / Path(_best_in(directory / _REPORT)).name
    if best != checkpoints and is_checkpoint(best):
        return best
    written = sorted(path.parent for path in checkpoints.glob(f"step-*/{_STATE}"))
    return written[-1] if written else None


def _best_in(report: Path) -> str:
    """Return the best checkpoint's directory in a report, as it was when the run ended."""
    try:
        content: Any = json.loads(report.read_bytes())
    except (OSError, ValueError):
        return ""
    best = content.get("best") if isinstance(content, dict) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    return best if isinstance(best, str) else ""
