"""Parsing of configuration text: TOML, YAML 1.2, JSON and ``--set`` values."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from agl_core.config.references import read_text
from agl_core.errors import ConfigError

_SCALAR: Final = re.compile(r"[-+.]?[~\w][-+.\w]*|")
"""Text that ``--set`` may parse as a number, a boolean or null."""
_PADDED: Final = re.compile(r"\+|-?0[0-9]")
"""Beginning of a decimal with a plus sign or leading zeros."""
_INT: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
"""Numbers of YAML 1.2's core schema."""
_OTHER_YAML: Final = re.compile(r"^%YAML(?![ \t]+1\.2\b)", re.MULTILINE)
"""The directive that asks for another version of YAML."""
_NOT_JSON: Final = ("binary", "omap", "pairs", "set")
"""YAML types of values that JSON does not have."""
_TAG: Final = "tag:yaml.org,2002:"


def _parse_yaml(text: str) -> Any:
    """Parse one YAML 1.2 document into values that JSON also has.

    Dates stay text. Keys must be text and unique; the message about a wrong key
    contains no value, which may be secret.

    Raises:
        ValueError: the text is malformed; the message names the line.
    """
    from ruamel.yaml import YAML  # noqa: PLC0415 - a TOML file does not need it
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    if _OTHER_YAML.search(text):
        raise ValueError("the file is read as YAML 1.2: remove its line %YAML")
    parser: Any = YAML(typ="safe", pure=True)
    parser.Constructor = _yaml_constructor()
    parser.Resolver = _yaml_resolver()
    try:
        return parser.load(text)
    except MarkedYAMLError as error:
        marked: Any = error
        line = f" (line {marked.problem_mark.line + 1})" if marked.problem_mark else ""
        raise ValueError(f"{marked.problem}{line}") from error
    except YAMLError as error:
        raise ValueError(str(error)) from error


def _yaml_constructor() -> Any:
    """Return the class that makes values of YAML nodes."""
    from ruamel.yaml.constructor import ConstructorError, SafeConstructor  # noqa: PLC0415

    class Constructor(SafeConstructor):
        def flatten_mapping(self, node: Any) -> Any:
            """Check the keys, then merge ``<<``, whose keys may be given again."""
            if getattr(node, "merge", None) is None:
                self.check_keys(key for key, _ in node.value if key.tag != f"{_TAG}merge")
            cast("Any", super()).flatten_mapping(node)

        def check_keys(self, nodes: Iterable[Any]) -> None:
            given: set[str] = set()
            for node in nodes:
                key = cast("Any", self).construct_object(node, deep=True)
                problem = ""
                if not isinstance(key, str):
                    problem = f"the key {key!r} is not text: quote it"
                elif key in given:
                    problem = f"the key {key!r} is given twice"
                if problem:
                    raise ConstructorError(problem=problem, problem_mark=node.start_mark)
                given.add(key)

        def refuse(self, node: Any) -> None:
            name = str(node.tag).removeprefix(_TAG)
            problem = f"!!{name} is not supported: write a list, a table or text"
            raise ConstructorError(problem=problem, problem_mark=node.start_mark)

    constructor: Any = Constructor  # the library's arguments have no types
    constructor.add_constructor(f"{_TAG}timestamp", constructor.construct_yaml_str)
    for name in _NOT_JSON:
        constructor.add_constructor(f"{_TAG}{name}", constructor.refuse)
    return constructor


def _yaml_resolver() -> Any:
    """Return the class that decides the types of YAML nodes without a tag."""
    from ruamel.yaml.nodes import ScalarNode  # noqa: PLC0415
    from ruamel.yaml.resolver import VersionedResolver  # noqa: PLC0415
    from ruamel.yaml.tag import Tag  # noqa: PLC0415

    class Resolver(VersionedResolver):
        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            tag = cast("Any", super()).resolve(kind, value, implicit)
            if kind is not ScalarNode or not implicit[0]:
                return tag
            if _INT.fullmatch(value):
                return Tag(suffix=f"{_TAG}int")
            if _FLOAT.fullmatch(value):
                return Tag(suffix=f"{_TAG}float")
            return self.DEFAULT_SCALAR_TAG if tag in (f"{_TAG}int", f"{_TAG}float") else tag

    return Resolver


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
            f"Configuration {str(path)!r} is no file that ends in {', '.join(SUFFIXES)}: name one"
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

    Other text is not changed, so only text that looks like one of these needs quotes. Text such as
    ``010``, ``+1``, ``0x10`` or ``1_000`` is not changed either: it may be a name.
    """
    if text[:1] not in ("[", "{", '"', "'") and not _SCALAR.fullmatch(text):
        return text
    try:
        value = _parse_yaml(text)
    except ValueError:
        return text
    if (type(value) is int and str(value) != text) or (
        isinstance(value, float) and _PADDED.match(text)
    ):
        return text
    return value


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
