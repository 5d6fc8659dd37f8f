"""Plain data: its short forms, and validation with errors that use the keys of the user's file."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypeVar, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agl_core.errors import ConfigError
from agl_core.text import exact_bytes

Path = tuple[str | int, ...]
"""Keys and list indices from the root."""

M = TypeVar("M", bound=BaseModel)

SECRET = re.compile(r"key|token|secret|password", re.IGNORECASE)
_MAX_LISTED = 30
_PASSWORD = re.compile(r"(://)[^\s'\"]*@")
"""User name and password in an address."""


def validate(
    model: type[M], data: Mapping[str, Any], *, where: str = "", also: Iterable[str] = ()
) -> M:
    """Build `model` from plain data.

    Args:
        model: The pydantic model.
        data: Keys and values.
        where: Path of `data` in the whole configuration, for messages.
        also: Valid keys in addition to the model's, for suggestions.

    Raises:
        ConfigError: the message names every wrong key with its value and the nearest valid key.
    """
    try:
        built = model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(describe(error, model, data, where=where, also=also)) from None
    for path, value in _leaves(built.model_dump()):
        if isinstance(value, float) and not math.isfinite(value):
            key = dotted(path, where)
            raise ConfigError(f"Configuration: {key} = {value}: must be a finite number")
    return built


def describe(
    error: ValidationError,
    model: type[BaseModel],
    data: Mapping[str, Any],
    *,
    where: str = "",
    also: Iterable[str] = (),
) -> str:
    """Return the message of a validation error, with one sentence per wrong key."""
    reasons: dict[Path, list[str]] = {}
    unknown: dict[Path, str] = {}
    for detail in error.errors(include_url=False):
        path = real_path(detail, data)
        extra = (
            detail["type"] == "dict_type" and len(path) == 1 and path[0] not in keys_at(model, ())
        )
        if extra or detail["type"] == "extra_forbidden":
            unknown[path] = unknown_key(path, model, where=where, also=also)
            unknown[path] += f"; a plugin's section is a table: [{path[0]}]" if extra else ""
        else:
            reasons.setdefault(path, []).append(_reason(detail))
    parts = list(unknown.values())
    for path, found in reasons.items():
        text = " or ".join(dict.fromkeys(found))
        value = _value_at(data, path)
        shown = "" if value is _ABSENT else f" = {_shown(path, value)}"
        parts.append(f"{dotted(path, where)}{shown}: {text}")
    return f"Configuration: {'; '.join(parts)}"


def real_path(detail: ErrorDetails, data: Mapping[str, Any]) -> Path:
    """Return the user's keys in pydantic's location, which also contains union members."""
    path: list[str | int] = []
    current: Any = data
    for part in detail["loc"]:
        inner = _child(current, part)
        if inner is _ABSENT:
            if detail["type"] == "missing":
                path.append(part)
            break
        path.append(part)
        current = inner
    return tuple(path)


def dotted(path: Sequence[str | int], where: str = "") -> str:
    return ".".join(filter(None, [where, *map(str, path)])) or "the whole"


_ABSENT: Any = object()


def _child(value: Any, part: str | int) -> Any:
    if isinstance(value, Mapping) and part in value:
        return cast("Mapping[Any, Any]", value)[part]
    if isinstance(value, list) and isinstance(part, int):
        items = cast("list[Any]", value)
        return items[part] if part < len(items) else _ABSENT
    return _ABSENT


def _value_at(data: Any, path: Path) -> Any:
    for part in path:
        data = _child(data, part)
    return data


def _shown(path: Path, value: Any) -> str:
    if path and SECRET.search(str(path[-1])):
        return "'***'"
    text = _PASSWORD.sub(r"\1***@", repr(value))
    return text if len(text) <= 200 else f"{text[:200]}..."  # noqa: PLR2004


def _reason(detail: ErrorDetails) -> str:
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "missing":
        return "is required"
    return message[:1].lower() + message[1:]


def unknown_key(
    path: Path, model: type[BaseModel], *, where: str = "", also: Iterable[str] = ()
) -> str:
    """Return the message for an unknown key, with the nearest key and a list of valid keys."""
    *parents, key = path
    siblings = keys_at(model, parents) + ([] if parents else list(also))
    near = get_close_matches(str(key), siblings, n=1)
    if near:
        hint = f"did you mean {dotted([*parents, near[0]], where)!r}?"
    else:
        elsewhere = [full for full in _all_keys(model) if full.rpartition(".")[2] == key]
        hint = f"did you mean {elsewhere[0]!r}?" if elsewhere else ""
    place = dotted(parents, where) if parents or where else "the top level"
    listed = ", ".join(siblings[:_MAX_LISTED]) or "no keys"
    asked = f": {hint}" if hint else ""
    return f"unknown key {dotted(path, where)!r}{asked} ({place} has: {listed})"


def keys_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the valid keys of a section of the model; [] if any key is valid."""
    current: type[BaseModel] | None = model
    inside_container = False
    for part in path:
        if inside_container:
            inside_container = False
        elif current is not None and isinstance(part, str) and part in current.model_fields:
            annotation = current.model_fields[part].annotation
            current = _submodel(annotation)
            inside_container = current is not annotation
        else:
            return []
    return _keys(current) if current else []


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _submodel(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside ``Model``, ``list[Model]`` or ``dict[str, Model]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = _submodel(argument)
        if found is not None:
            return found
    return None


def _all_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, field in model.model_fields.items():
        found.append(prefix + (field.alias or name))
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += _all_keys(inner, f"{prefix}{name}.")
    return found


def _leaves(value: Any, path: Path = ()) -> Iterable[tuple[Path, Any]]:
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[Any, Any]", value).items():
            yield from _leaves(inner, (*path, getattr(key, "value", key)))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(cast("Sequence[Any]", value)):
            yield from _leaves(inner, (*path, index))
    else:
        yield path, value


_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://")
_MOST_BYTES: Final = 255
"""Limit of one name, on every common file system."""
_NO_NAME: Final = re.compile(
    r'[\x00-\x1f/\\:*?"<>|]' if sys.platform == "win32" else r"[\x00-\x1f/\\]"
)
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
"""Device names of Windows, with any ending."""


def folder_name(given: str) -> str:
    """Check that a name is valid for a folder on every system.

    Raises:
        ValueError: it is not valid.
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
    """Check that a path is not an address and has no NUL character.

    Args:
        given: The path.
        instead: The fix for an address, for the message.

    Raises:
        ValueError: it is an address or contains NUL.
    """
    if "\x00" in given:
        raise ValueError("a path cannot hold the character NUL")
    scheme = scheme_of(given)
    if scheme:
        raise ValueError(f"is an address ({scheme}://), not a path on this machine: {instead}")
    return given


def scheme_of(given: str) -> str:
    """Return the text before ``://`` of an address; empty for a path, such as ``C:/run``."""
    address = _ADDRESS.match(given)
    return address[1] if address is not None else ""


_NAMED: Final = ("engine", "algorithm", "store")
"""Sections that name a plugin; their short form is only the plugin's name."""


def in_full(given: Mapping[str, Any], *, fields: Collection[str]) -> dict[str, Any]:
    """Return a configuration with every short form expanded.

    ``algorithm = "rloo"`` is short for a section with only that name. A top-level table with the
    name of the engine or algorithm is short for the engine's option of that name: ``[NAME]`` for
    ``[engine.NAME]``, which has the settings of the library that the engine uses.

    Raises:
        ConfigError: both tables exist and differ.
    """
    data = with_sections(given)
    named = [_name(data.get(key)) for key in ("engine", "algorithm")]
    for name in {name for name in named if name is not None and name in data} - {*fields}:
        engine = data.get("engine", {})
        if isinstance(data[name], Mapping) and isinstance(engine, Mapping):
            section = dict(cast("Mapping[str, Any]", engine))
            section[name] = _joined(section.get(name, {}), data.pop(name), name)
            data["engine"] = section
    return data


def _joined(inner: Any, outer: Any, path: str) -> Any:
    """Merge ``[engine.NAME]`` and ``[NAME]``."""
    if isinstance(inner, Mapping) and isinstance(outer, Mapping):
        joined = dict(cast("Mapping[str, Any]", inner))
        for key, value in cast("Mapping[str, Any]", outer).items():
            joined[key] = _joined(joined[key], value, f"{path}.{key}") if key in joined else value
        return joined
    if inner != outer:
        raise ConfigError(
            f"Configuration: {path} = {outer!r}, but engine.{path} = {inner!r}, which is another "
            f"name of it: set one of them"
        )
    return outer


def with_sections(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with a section for every plugin's name."""
    data = dict(given)
    for key in _NAMED:
        if isinstance(data.get(key), str):
            data[key] = {"name": data[key]}
    return data


def section_key(path: tuple[str, ...], value: Any) -> tuple[str, ...]:
    """Return the path of an override: ``algorithm=rloo`` changes only ``algorithm.name``."""
    named = len(path) == 1 and path[0] in _NAMED and isinstance(value, str)
    return (*path, "name") if named else path


def _name(section: Any) -> str | None:
    """Return the plugin's name in a section, which is plain data or a model."""
    if isinstance(section, Mapping):
        section = cast("Mapping[str, Any]", section).get("name")
    else:
        section = getattr(section, "name", None)
    return section if isinstance(section, str) else None
