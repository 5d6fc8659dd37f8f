"""The integrations of a program, from its imports and their dependencies."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agl_core.plugins import CORE, PluginManager, Registration
from agl_core.plugins.requirements import requirements


def integrations_of(imports: Iterable[str], plugins: PluginManager) -> list[Registration]:
    """Return the integrations whose framework is nearest to the program's imports.

    Of frameworks at the same distance in dependencies, the one that most imports depend on is
    chosen. Several integrations are returned only if both numbers are equal.
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
    """Return the framework's own distribution: the first one in the extra."""
    if registration.extra is None:
        return ""
    found = requirements(registration.distribution or CORE, registration.extra)
    return canonicalize_name(found[0].name) if found else ""


def _distances(nearest: Iterable[str]) -> dict[str, int]:
    """Return each distribution's distance from `nearest`, in dependencies."""
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
