"""Reading the end of a failed Ray process's log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LINES: Final = 30
_TAIL_BYTES: Final = 65_536
_PID: Final = re.compile(r"\bpid[=:]\s*(\d+)")
_SIGNS: Final = re.compile(r"Error|Exception|Traceback|FATAL|Killed")


def folder() -> Path | None:
    """Return the log directory of this process's Ray; None if Ray is not started."""
    import ray  # noqa: PLC0415

    worker = getattr(getattr(ray, "_private", None), "worker", None)
    node = getattr(worker, "_global_node", None)
    if node is None or not ray.is_initialized():
        return None
    logs = Path(node.get_logs_dir_path())
    return logs if logs.is_dir() else None


def cause_in(logs: Path, message: str, *, since: float) -> str:
    """Return text to append to an error: the end of the relevant log, and the log directory.

    Args:
        logs: Ray's log directory.
        message: The error message, which may name the process.
        since: Seconds since the epoch; logs last written before this time are ignored.
    """
    where = f"Logs of Ray's workers: {logs}"
    for file in _candidates(logs, message, since):
        lines = _end(file)
        if lines:
            return f"End of {file.name}:\n{chr(10).join(lines)}\n{where}"
    return where


def _candidates(logs: Path, message: str, since: float) -> list[Path]:
    """Return the named process's logs, then recently written logs with signs of an error."""
    files = [
        (file, file.stat().st_mtime)
        for kind in ("err", "out")
        for file in logs.glob(f"worker-*.{kind}")
        if file.is_file()
    ]
    pids = set(_PID.findall(message))
    named = [file for file, _ in files if file.stem.rpartition("-")[2] in pids]
    late = sorted((pair for pair in files if pair[1] >= since), key=lambda pair: -pair[1])
    failed = [file for file, _ in late if any(map(_SIGNS.search, _end(file)))]
    return [*dict.fromkeys([*[f for f in named if f in failed], *named, *failed])]


def _end(file: Path) -> Sequence[str]:
    """Return the last lines without Ray's markers; empty if the file cannot be read."""
    try:
        with file.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(":")]
    return lines[-_LINES:]
