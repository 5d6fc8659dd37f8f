"""Configuration text to plain data: TOML, YAML 1.2, JSON and ``--set`` values."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import yaml

from agl_core.config.references import read_text
from agl_core.errors import ConfigError

_AMBIGUOUS: Final = r"^[-+]?0[0-9_]+$|^[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+$"
_FLOAT: Final = (
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_TAG: Final = "tag:yaml.org,2002:"
# https://yaml.org/spec/1.2.2/#103-core-schema, with what YAML 1.1 reads differently set apart.
_SCHEMA: Final = (
    ("null", r"^(?:~|null|Null|NULL|)$", ("~", "n", "N", "")),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", tuple("tTfF")),
    ("ambiguous", _AMBIGUOUS, tuple("-+0123456789")),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", tuple("-+0123456789")),
    ("float", _FLOAT, tuple("-+0123456789.")),
    ("merge", r"^<<$", ("<",)),
)


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    by_first: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, pattern, firsts in _SCHEMA:
        for first in firsts:
            by_first.setdefault(first, []).append((_TAG + tag, re.compile(pattern)))
    return by_first


def _yaml_error(node: yaml.Node, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)


def _ambiguous(_: yaml.SafeLoader, node: yaml.ScalarNode) -> NoReturn:
    raise _yaml_error(
        node, f"{node.value!r} means different numbers to different readers: quote it"
    )


def _integer(_: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = node.value.lower()
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


class _Loader(yaml.SafeLoader):
    """YAML 1.2 core schema: ``1e-5`` is a number; ``yes``, ``on`` and dates are text.

    What YAML 1.1 reads as a number of another base (``010``, ``1:30``) is refused, as is a key
    written twice.
    """

    yaml_implicit_resolvers = _resolvers()
    yaml_constructors: dict[str, Any] = {  # noqa: RUF012 - not a ClassVar in the base class
        **yaml.SafeLoader.yaml_constructors,
        _TAG + "ambiguous": _ambiguous,
        _TAG + "int": _integer,
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == _TAG + "merge":
                continue
            key = cast("Any", self.construct_object(key_node, deep=True))  # pyright: ignore[reportUnknownMemberType]
            if not isinstance(key, str):
                raise _yaml_error(key_node, f"the key {key!r} is not text: quote it")
            if key in seen:
                raise _yaml_error(key_node, f"the key {key!r} stands twice")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _parse_toml(text: str) -> Any:
    return tomllib.loads(text)


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader


_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    ".toml": _parse_toml,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": json.loads,
}

SUFFIXES: Final = tuple(_PARSERS)
"""Endings of the files that `read_config` reads."""


def read_config(path: Path) -> dict[str, Any]:
    """Plain data of a configuration file; the ending decides the format.

    Raises:
        ConfigError: no such file, another ending, malformed text (names the line), or no table.
    """
    parser = _PARSERS.get(path.suffix.lower())
    if parser is None:
        raise ConfigError(
            f"Configuration {str(path)!r} ends in {path.suffix!r}: use {', '.join(SUFFIXES)}"
        )
    text = read_text(path, what="Configuration")
    try:
        data = parser(text)
    except (ValueError, yaml.YAMLError) as error:
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
    """What the right side of ``--set key=value`` means: a scalar, or a list, table or quoted text.

    Text that is none of these stays as it is, so nothing has to be quoted but text that looks
    like a number.
    """
    try:
        if text[:1] in ("[", "{", '"', "'"):
            return _parse_yaml(text)
        loader = cast("Any", _Loader(""))  # the stubs leave these two methods untyped
        tag = loader.resolve(yaml.ScalarNode, text, (True, False))
        return loader.construct_object(yaml.ScalarNode(tag, text))
    except yaml.YAMLError:
        return text
