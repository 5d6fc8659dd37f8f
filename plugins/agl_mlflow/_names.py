"""Names that MLflow takes."""

from __future__ import annotations

import posixpath
import re
from typing import Final

_REFUSED: Final = re.compile(r"[^/\w.\- :]")
_LONGEST: Final = 250


def mlflow_name(name: str) -> str:
    """A number's or setting's name, characters that MLflow refuses as ``_<code>_``.

    Where it is no plain path, as ``rows/a//b``, all but its first slash are such characters.
    """
    name = _REFUSED.sub(lambda found: f"_{ord(found[0]):x}_", name)
    if posixpath.normpath(name) != name or name.startswith(("/", "..")):
        kind, _, rest = name.partition("/")
        name = f"{_part(kind)}/{_part(rest.replace('/', '_2f_'))}"
    return name[:_LONGEST]


def _part(text: str) -> str:
    """A part of a path that is neither empty nor ``..``."""
    return text if text.strip(".") else "_2e_" * len(text) or "_"
