"""Configuration text to plain data: TOML, YAML 1.2, JSON and ``--set`` values."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from agl_core.config.references import read_text
from agl_core.errors import ConfigError

_SCALAR: Final = re.compile(r"[-+.]?[~\w][-+.\w]*|")
"""What ``--set`` may read as a number, a boolean or null."""


def _parse_yaml(text: str) -> Any:
    """The one document of a text, as YAML 1.2 reads it, of values that JSON has too.

    Dates stay text. Keys are text, and each is written once.

    Raises:
        ValueError: the text is malformed; names the line.
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

    constructor: Any = Constructor  # the library leaves its arguments untyped
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
    """What the right side of ``--set key=value`` means: a scalar, or a list, table or quoted text.

    Text that is none of these stays as it is, so nothing has to be quoted but text that looks
    like a number.
    """
    if text[:1] not in ("[", "{", '"', "'") and not _SCALAR.fullmatch(text):
        return text
    try:
        return _parse_yaml(text)
    except ValueError:
        return text
