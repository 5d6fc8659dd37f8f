"""Parsing of configuration text: TOML, YAML 1.2, JSON and ``--set`` values."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from agl_core.config.references import read_text
from agl_core.errors import ConfigError

_SCALAR: Final = re.compile(r"[-+.]?[~\w][-+.\w]*|")
"""Text that ``--set`` may parse as a number, a boolean or null."""


def _parse_yaml(text: str) -> Any:
    """Parse one YAML 1.2 document into values that JSON also has.

    Dates stay text. Keys must be text and unique.

    Raises:
        ValueError: the text is malformed; the message names the line.
    """
    from ruamel.yaml import YAML  # noqa: PLC0415 - a TOML file does not need it
    from ruamel.yaml.constructor import ConstructorError, SafeConstructor  # noqa: PLC0415
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    class Constructor(SafeConstructor):
        def check_mapping_key(
            self, node: Any, key_node: Any, mapping: Any, key: Any, value: Any
        ) -> bool:
            if not isinstance(key, str):
                problem = f"the key {key!r} is not text: quote it"
                raise ConstructorError(problem=problem, problem_mark=key_node.start_mark)
            inherited = cast("Any", super())
            return inherited.check_mapping_key(node, key_node, mapping, key, value)

    constructor: Any = Constructor  # the library's arguments have no types
    constructor.add_constructor("tag:yaml.org,2002:timestamp", constructor.construct_yaml_str)
    parser: Any = YAML(typ="safe", pure=True)
    parser.Constructor = Constructor
    try:
        return parser.load(text)
    except MarkedYAMLError as error:
        marked: Any = error
        line = f" (line {marked.problem_mark.line + 1})" if marked.problem_mark else ""
        raise ValueError(f"{marked.problem}{line}") from error
    except YAMLError as error:
        raise ValueError(str(error)) from error


_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    ".toml": tomllib.loads,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": json.loads,
}

SUFFIXES: Final = tuple(_PARSERS)
"""File endings that `read_config` reads."""


def read_config(path: Path) -> dict[str, Any]:
    """Read a configuration file as plain data; its ending determines the format.

    Raises:
        ConfigError: the file does not exist, has another ending, is malformed (the message names
            the line), or is not a table.
    """
    parser = _PARSERS.get(path.suffix.lower())
    if parser is None:
        raise ConfigError(
            f"Configuration {str(path)!r} ends in {path.suffix!r}: use {', '.join(SUFFIXES)}"
        )
    text = read_text(path, what="Configuration")
    try:
        data = parser(text)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"Configuration {str(path)!r} cannot be parsed: {reason}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"Configuration {str(path)!r} holds {type(data).__name__!r}: the top must be a table"
        )
    return cast("dict[str, Any]", data)


def parse_value(text: str) -> Any:
    """Parse the right side of ``--set key=value``: a scalar, a list, a table or quoted text.

    Other text is not changed, so only text that looks like one of these needs quotes.
    """
    if text[:1] not in ("[", "{", '"', "'") and not _SCALAR.fullmatch(text):
        return text
    try:
        return _parse_yaml(text)
    except ValueError:
        return text


_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^."']+?))\s*(?:\.|$)""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One parsed ``--set``."""

    path: tuple[str, ...]
    raw: str
    """The text after the equals sign."""
    value: Any
    """The parsed value of the text."""


def parse_override(text: str) -> Override:
    """Parse ``key.key=value``; a key that contains dots is quoted, as in TOML.

    Raises:
        ConfigError: the text has no ``=``, or the key is malformed.
    """
    key, separator, raw = text.partition("=")
    path = _split(key)
    if not separator or path is None:
        raise ConfigError(f"Override {text!r} is malformed: write --set section.key=value")
    raw = raw.strip()
    return Override(path=path, raw=raw, value=parse_value(raw))


def parse_key(key: str) -> tuple[str, ...]:
    """Parse ``key.key``; a key that contains dots is quoted, as in TOML.

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
    """Set the value at `path` in place; missing tables are created, list items have an index.

    Raises:
        ConfigError: a part of the path is neither a table nor a list, or an index does not exist.
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
