"""Names and paths on this machine: what cannot be one says so before anything is written."""

from __future__ import annotations

import re
import sys
from typing import Final

from agl_core.text import exact_bytes

_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://")
_MOST_BYTES: Final = 255
"""Of one name, on every usual file system."""
_NO_NAME: Final = re.compile(
    r'[\x00-\x1f/\\:*?"<>|]' if sys.platform == "win32" else r"[\x00-\x1f/\\]"
)
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
"""Devices of Windows, with any ending."""


def folder_name(given: str) -> str:
    """Check that a name can be that of a folder, on every system.

    Raises:
        ValueError: it cannot.
    """
    why = ""
    if not given.strip() or given in (".", ".."):
        why = "names no folder"
    elif found := _NO_NAME.search(given):
        why = f"holds {found.group()!r}"
    elif _RESERVED.fullmatch(given):
        why = "is the name of a device on Windows"
    elif given != given.strip() or given.endswith("."):
        why = "begins or ends with a space, or ends with a dot"
    elif len(exact_bytes(given)) > _MOST_BYTES:
        why = f"is longer than {_MOST_BYTES} bytes"
    if why:
        raise ValueError(
            f"a run's name is that of a folder in 'directory', and this one {why}: use letters, "
            f"digits, '-', '_' and '.'"
        )
    return given


def local_path(given: str, *, instead: str) -> str:
    """Check that a path is none of another machine, nor impossible.

    Args:
        given: The path.
        instead: What takes such an address.

    Raises:
        ValueError: it is.
    """
    if "\x00" in given:
        raise ValueError("a path cannot hold the character NUL")
    address = _ADDRESS.match(given)
    if address is not None:
        raise ValueError(
            f"is an address ({address.group(1)}://), not a path on this machine: {instead}"
        )
    return given
