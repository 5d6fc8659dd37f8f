"""Shorter ways to write a configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from agl_core.errors import ConfigError

_NAMED: Final = ("engine", "algorithm", "store")
"""Sections that name a plugin and may be written as its name alone."""


def in_full(given: Mapping[str, Any], *, fields: Collection[str]) -> dict[str, Any]:
    """A configuration with every shorthand written out.

    ``algorithm = "rloo"`` stands for a section with that name and no other key. A table of the top
    level that is called like the engine or the algorithm stands for the engine's option of that
    name: ``[NAME]`` for ``[engine.NAME]``, the settings of the program beneath the engine.

    Raises:
        ConfigError: both tables are there and disagree.
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
    """What ``[engine.NAME]`` and ``[NAME]`` say together."""
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
    """The configuration with every plugin's name in a section of its own."""
    data = dict(given)
    for key in _NAMED:
        if isinstance(data.get(key), str):
            data[key] = {"name": data[key]}
    return data


def section_key(path: tuple[str, ...], value: Any) -> tuple[str, ...]:
    """Where an override goes: ``algorithm=rloo`` changes the name and leaves the other keys."""
    named = len(path) == 1 and path[0] in _NAMED and isinstance(value, str)
    return (*path, "name") if named else path


def _name(section: Any) -> str | None:
    """What a section names, be it plain data or built already."""
    if isinstance(section, Mapping):
        section = cast("Mapping[str, Any]", section).get("name")
    else:
        section = getattr(section, "name", None)
    return section if isinstance(section, str) else None
