"""The end of what a process of Ray's wrote before it failed."""

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
    """Where the Ray of this process keeps its logs on this machine; None before it is started."""
    import ray  # noqa: PLC0415

    worker = getattr(getattr(ray, "_private", None), "worker", None)
    node = getattr(worker, "_global_node", None)
    if node is None or not ray.is_initialized():
        return None
    logs = Path(node.get_logs_dir_path())
    return logs if logs.is_dir() else None


def cause_in(logs: Path, message: str, *, since: float) -> str:
    """What to add to an error: the end of the log with its cause, and where the logs are.

    Args:
        logs: Ray's folder.
        message: The error, which may name the process.
        since: Logs that were last written before, in seconds since the epoch, are of others.
    """
    where = f"Logs of Ray's workers: {logs}"
    for file in _candidates(logs, message, since):
        lines = _end(file)
        if lines:
            return f"End of {file.name}:\n{chr(10).join(lines)}\n{where}"
    return where


def _candidates(logs: Path, message: str, since: float) -> list[Path]:
    """Logs of the process that is named; else of those that wrote lately, errors first."""
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
    """Its last lines, without Ray's own marks; none of a file that cannot be read."""
    try:
        with file.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(":")]
    return lines[-_LINES:]
