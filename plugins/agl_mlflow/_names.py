"""Names that MLflow accepts."""

from __future__ import annotations

import posixpath
import re
from typing import Final

_REFUSED: Final = re.compile(r"[^/\w.\- :]")
_LONGEST: Final = 250


def mlflow_name(name: str) -> str:
    """Return a name for MLflow, with refused characters as ``_<code>_``.

    If the name is not a plain path, such as ``rows/a//b``, all slashes but the first are refused.
    """
    name = _REFUSED.sub(lambda found: f"_{ord(found[0]):x}_", name)
    if posixpath.normpath(name) != name or name.startswith(("/", "..")):
        kind, _, rest = name.partition("/")
        name = f"{_part(kind)}/{_part(rest.replace('/', '_2f_'))}"
    return name[:_LONGEST]


def _part(text: str) -> str:
    """Return a part of a path that is neither empty nor ``..``."""
    return text if text.strip(".") else "_2e_" * len(text) or "_"
