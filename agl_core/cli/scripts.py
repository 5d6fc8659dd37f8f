"""Run code of the user's as Python itself would."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def importable(folder: Path) -> Generator[None, None, None]:
    """Let modules of a folder be imported, first of all, as beside a script."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def run_script(path: Path, arguments: Sequence[str]) -> None:
    """Do what ``python path arguments...`` does, in this process.

    Raises:
        BaseException: whatever the script raises, `SystemExit` included.
    """
    argv = sys.argv
    sys.argv = [str(path), *arguments]
    try:
        with importable(path.parent):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = argv
