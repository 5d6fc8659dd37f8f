"""The requirements of an extra, and the missing ones, from installed metadata."""

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
    """Return the version of agl-core; ``unknown`` if it is not installed."""
    try:
        return metadata.version("agl-core")
    except metadata.PackageNotFoundError:
        return "unknown"


def requirements(distribution: str, extra: str | None) -> list[Requirement]:
    """Return the requirements of an extra for this machine, including its nested extras.

    With `extra` None, the distribution's unconditional requirements; [] if it is not installed.
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
    """Return the requirements of an extra that are missing or have the wrong version."""
    return [each for each in requirements(distribution, extra) if not is_met(each)]


def is_met(requirement: Requirement) -> bool:
    """Return whether the installed version matches, pre-releases included."""
    try:
        version = metadata.version(requirement.name)
        return requirement.specifier.contains(version, prereleases=True)
    except (metadata.PackageNotFoundError, InvalidVersion):
        return False


def is_installed(requirement: Requirement) -> bool:
    """Return whether any version of the distribution is installed."""
    try:
        metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    return True


def provides(requirement: Requirement, module: str) -> bool:
    """Return whether `module`, an import name, has the name of the distribution."""
    return canonicalize_name(requirement.name) == canonicalize_name(module)


def requirement_text(requirement: Requirement) -> str:
    """Return name and versions in pip's form, with the lower bound first."""
    return requirement.name + ",".join(sorted(map(str, requirement.specifier), reverse=True))


def _declared(distribution: str) -> list[Requirement]:
    try:
        return [Requirement(line) for line in metadata.requires(distribution) or []]
    except metadata.PackageNotFoundError:
        return []


def _asked_for(requirement: Requirement, extra: str) -> bool:
    """Return whether the extra, or for "" the distribution itself, requires it on this machine."""
    marker = requirement.marker
    always = marker is None or marker.evaluate({"extra": ""})
    if not extra:
        return always
    return marker is not None and not always and marker.evaluate({"extra": extra})


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework that a plugin's modules import."""

    module: str
    """The framework's import name."""
    needs: str
    """The requirement that installs it."""
    plugin: str
    """The plugin's name for users."""
    extra: str | None = None
    """The extra of agl-core with the requirement, if there is one."""


def offered(name: str, package: str, places: Mapping[str, str], *frameworks: Framework) -> Any:
    """Implement a package's ``__getattr__``, so that importing the package imports no framework.

    ::

        def __getattr__(name: str) -> Any:
            return offered(name, __name__, {"MyHandler": "_handler"}, Framework("mine", ...))

    Args:
        name: The requested name.
        package: Import name of the package.
        places: Names to their modules in the package.
        frameworks: Frameworks that may be missing.

    Raises:
        AttributeError: `places` does not have the name.
        MissingExtraError: a framework is not installed, or in a version that lacks a used name.
        ImportError: another module could not be imported.
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
