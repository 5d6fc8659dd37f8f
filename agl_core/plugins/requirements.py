"""What an extra requires and what of it is missing, read from installed metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from agl_core.errors import MissingExtraError


def own_version() -> str:
    """Of agl-core itself; ``unknown`` where it runs without being installed."""
    try:
        return metadata.version("agl-core")
    except metadata.PackageNotFoundError:
        return "unknown"


def requirements(distribution: str, extra: str | None) -> list[Requirement]:
    """What `extra` of `distribution` brings to this machine, its own nested extras followed.

    With `extra` None, what the distribution always requires; [] when it is not installed.
    """
    found: list[Requirement] = []
    pending = [extra or ""]
    seen: set[str] = set()
    while pending:
        wanted = pending.pop(0)
        if wanted in seen:
            continue
        seen.add(wanted)
        for requirement in _declared(distribution):
            if not _asked_for(requirement, wanted):
                continue
            if provides(requirement, distribution):
                pending.extend(sorted(requirement.extras))
            else:
                found.append(requirement)
    return found


def unmet(distribution: str, extra: str | None) -> list[Requirement]:
    """The requirements of an extra that are absent or of the wrong version."""
    return [each for each in requirements(distribution, extra) if not is_met(each)]


def is_met(requirement: Requirement) -> bool:
    """The installed version, if any, is one that pip would accept; pre-releases count too."""
    try:
        version = metadata.version(requirement.name)
        return requirement.specifier.contains(version, prereleases=True)
    except (metadata.PackageNotFoundError, InvalidVersion):
        return False


def is_installed(requirement: Requirement) -> bool:
    """Whether any version of the distribution is installed."""
    try:
        metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    return True


def provides(requirement: Requirement, module: str) -> bool:
    """Whether `module`, an import name, is plausibly this distribution's."""
    return canonicalize_name(requirement.name) == canonicalize_name(module)


def requirement_text(requirement: Requirement) -> str:
    """Name and versions as pip takes them, the lower bound first."""
    return requirement.name + ",".join(sorted(map(str, requirement.specifier), reverse=True))


def _declared(distribution: str) -> list[Requirement]:
    try:
        return [Requirement(line) for line in metadata.requires(distribution) or []]
    except metadata.PackageNotFoundError:
        return []


def _asked_for(requirement: Requirement, extra: str) -> bool:
    """Whether an extra, or for "" the distribution itself, brings the requirement here."""
    marker = requirement.marker
    always = marker is None or marker.evaluate({"extra": ""})
    if not extra:
        return always
    return marker is not None and not always and marker.evaluate({"extra": extra})


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework that a plugin's modules import."""

    module: str
    """Its import name."""
    needs: str
    """The requirement that brings it."""
    plugin: str
    """Whose it is, as a user knows it."""
    extra: str | None = None
    """The extra of agl-core with the requirement, where there is one."""


def offered(name: str, package: str, places: Mapping[str, str], *frameworks: Framework) -> Any:
    """Serve a package's ``__getattr__``, so that importing the package imports no framework.

    ::

        def __getattr__(name: str) -> Any:
            return offered(name, __name__, {"MyHandler": "_handler"}, Framework("mine", ...))

    Args:
        name: What is asked for.
        package: Import name of the package.
        places: By each name, the module of the package that has it.
        frameworks: Those that may be missing.

    Raises:
        AttributeError: the package offers no such name.
        MissingExtraError: a framework is not installed, or not in a version that has what is used.
        ImportError: something else could not be imported.
    """
    if name not in places:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{package}.{places[name]}"), name)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        for each in frameworks:
            if each.module == missing:
                raise MissingExtraError(each.plugin, needs=each.needs, extra=each.extra) from error
        raise
