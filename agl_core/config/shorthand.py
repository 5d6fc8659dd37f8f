"""Shorter ways to write a configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

_NAMED: Final = ("engine", "algorithm", "store")
"""Sections that name a plugin and may be written as its name alone."""


def in_full(given: Mapping[str, Any], *, fields: Collection[str]) -> dict[str, Any]:
    """A configuration with every shorthand written out.

    ``algorithm = "rloo"`` stands for a section with that name and no other key. A table of the top
    level that is called like the engine or the algorithm stands for the engine's option of that
    name: ``[NAME]`` for ``[engine.NAME]``, the settings of the program beneath the engine.
    """
    data = with_sections(given)
    named = [_name(data.get(key)) for key in ("engine", "algorithm")]
    for name in {name for name in named if name is not None and name in data} - {*fields}:
        engine = data.get("engine", {})
        if isinstance(data[name], Mapping) and isinstance(engine, Mapping):
            data["engine"] = {**cast("Mapping[str, Any]", engine), name: data.pop(name)}
    return data


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
