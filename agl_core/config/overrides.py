"""``--set a.b=c``: one value put into plain data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from agl_core.config.text import parse_value
from agl_core.errors import ConfigError

_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^."']+?))\s*(?:\.|$)""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One parsed ``--set``."""

    path: tuple[str, ...]
    raw: str
    """The text right of the equals sign."""
    value: Any
    """What the text means when it is read as a value."""


def parse_override(text: str) -> Override:
    """Parse ``key.key=value``; a key with dots in it is quoted, as in TOML.

    Raises:
        ConfigError: there is no ``=``, or the key is malformed.
    """
    key, separator, raw = text.partition("=")
    path = _split(key)
    if not separator or path is None:
        raise ConfigError(f"Override {text!r} is malformed: write --set section.key=value")
    raw = raw.strip()
    return Override(path=path, raw=raw, value=parse_value(raw))


def parse_key(key: str) -> tuple[str, ...]:
    """Parse ``key.key``; a key with dots in it is quoted, as in TOML.

    Raises:
        ConfigError: the key is malformed.
    """
    path = _split(key)
    if path is None:
        raise ConfigError(f"Override of {key!r} is malformed: write 'section.key'")
    return path


def _split(key: str) -> tuple[str, ...] | None:
    path: list[str] = []
    position = 0
    while position < len(key):
        match = _PART.match(key, position)
        if match is None:
            break
        path.append(next(part for part in match.groups() if part is not None))
        position = match.end()
    if not path or position < len(key) or key.endswith("."):
        return None
    return tuple(path)


def put(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set the value at `path` in place; tables on the way are made, list items are indexed.

    Raises:
        ConfigError: the way leads through something that has no keys, or past a list's end.
    """
    current: Any = data
    for depth, part in enumerate(path[:-1]):
        key = _key(current, part, path[: depth + 1])
        if isinstance(key, str) and current.get(key) is None:
            current[key] = {}
        current = current[key]
    current[_key(current, path[-1], path)] = value


def _key(container: Any, part: str, path: Sequence[str]) -> str | int:
    if isinstance(container, dict):
        return part
    if isinstance(container, list):
        size = len(cast("list[Any]", container))
        if part.isdecimal() and int(part) < size:
            return int(part)
        raise ConfigError(
            f"Override of {'.'.join(path)!r}: {part!r} is no index of a list of {size}"
        )
    raise ConfigError(
        f"Override of {'.'.join(path)!r}: {'.'.join(path[:-1])!r} is {container!r}, which has no "
        f"keys"
    )
