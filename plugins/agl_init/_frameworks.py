"""The integrations of a program, from its imports and their dependencies."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agl_core.plugins import PluginManager, Registration
from agl_core.plugins.registry import CORE
from agl_core.plugins.requirements import requirements


def integrations_of(imports: Iterable[str], plugins: PluginManager) -> list[Registration]:
    """The integrations whose framework the program imports, the nearest first.

    A framework that several packages of the program build on comes before one that fewer do. Of
    two at the same distance both are given.
    """
    registrations = plugins.registry("integrations").registrations()
    if not registrations:
        return []
    owners = metadata.packages_distributions()
    distances = [_distances(owners.get(name) or [name]) for name in sorted(imports)]
    ranked: list[tuple[int, int, Registration]] = []
    for registration in registrations:
        wanted = _framework(registration)
        reached = [found[wanted] for found in distances if wanted in found]
        if wanted and reached:
            ranked.append((min(reached), -len(reached), registration))
    if not ranked:
        return []
    first = min(rank[:2] for rank in ranked)
    return [registration for *rank, registration in ranked if tuple(rank) == first]


def _framework(registration: Registration) -> str:
    """Distribution of the framework itself: what the extra names first."""
    if registration.extra is None:
        return ""
    found = requirements(registration.distribution or CORE, registration.extra)
    return canonicalize_name(found[0].name) if found else ""


def _distances(nearest: Iterable[str]) -> dict[str, int]:
    """Distributions to the number of dependencies between them and what is imported."""
    found: dict[str, int] = {canonicalize_name(name): 0 for name in nearest}
    waiting = list(found)
    while waiting:
        name = waiting.pop(0)
        for requirement in _requires(name):
            needed = canonicalize_name(requirement.name)
            if needed not in found:
                found[needed] = found[name] + 1
                waiting.append(needed)
    return found


def _requires(distribution: str) -> list[Requirement]:
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    given = [Requirement(line) for line in lines]
    return [each for each in given if each.marker is None or each.marker.evaluate({"extra": ""})]
