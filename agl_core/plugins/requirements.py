"""What an extra requires and what of it is missing, read from installed metadata."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

_REQUIREMENT = re.compile(
    r"^\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[(?P<extras>[^\]]*)\])?"
    r"\s*\(?(?P<specifier>[^;)]*)\)?\s*(?:;(?P<marker>.*))?$"
)
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_CLAUSE = re.compile(r"^(>=|<=|==|!=|~=|>|<)\s*([0-9][0-9.]*)(\.\*)?$")
_RELEASE = re.compile(r"^\d+(?:\.\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One line of a distribution's ``Requires-Dist``."""

    name: str
    extras: tuple[str, ...] = ()
    clauses: tuple[str, ...] = ()
    for_extra: str | None = None
    """The extra that asks for it; None when the distribution always does."""
    conditional: bool = False
    """Its marker also asks for something else, such as a platform."""

    def __str__(self) -> str:
        return self.name + ",".join(self.clauses)

    @property
    def met(self) -> bool:
        """The installed version, if any, satisfies every clause."""
        try:
            version = metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return False
        return all(_satisfies(version, clause) for clause in self.clauses)

    def provides(self, module: str) -> bool:
        """Whether `module`, an import name, is plausibly this distribution's."""
        return normalize(self.name) == normalize(module)


def normalize(name: str) -> str:
    """Distribution names compare equal after this (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_requirement(line: str) -> Requirement:
    """Parse a ``Requires-Dist`` line; versions are kept as the clauses they are written in.

    Raises:
        ValueError: the line is no requirement.
    """
    match = _REQUIREMENT.match(line)
    if match is None:
        raise ValueError(f"Not a requirement: {line!r}")
    marker = match["marker"] or ""
    extra = _EXTRA.search(marker)
    clauses = [part.strip() for part in match["specifier"].split(",") if part.strip()]
    return Requirement(
        name=match["name"],
        extras=tuple(part.strip() for part in (match["extras"] or "").split(",") if part.strip()),
        clauses=tuple(sorted(clauses, key=lambda clause: not clause.startswith(">"))),
        for_extra=normalize(extra[1]) if extra else None,
        conditional=bool(_EXTRA.sub("", marker).strip(" ()")),
    )


def requirements(distribution: str, extra: str | None) -> list[Requirement]:
    """What `extra` of `distribution` brings, its own nested extras followed; [] when unknown.

    With `extra` None, what the distribution always requires.
    """
    found: list[Requirement] = []
    pending: list[str | None] = [extra and normalize(extra)]
    seen: set[str | None] = set()
    while pending:
        wanted = pending.pop(0)
        if wanted in seen:
            continue
        seen.add(wanted)
        for requirement in _declared(distribution):
            if requirement.for_extra != wanted:
                continue
            if requirement.provides(distribution):
                pending.extend(normalize(nested) for nested in requirement.extras)
            else:
                found.append(requirement)
    return found


def unmet(distribution: str, extra: str | None) -> list[Requirement]:
    """The unconditional requirements of an extra that are absent or of the wrong version."""
    return [
        requirement
        for requirement in requirements(distribution, extra)
        if not requirement.conditional and not requirement.met
    ]


def _declared(distribution: str) -> list[Requirement]:
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    return [parse_requirement(line) for line in lines]


def _release(version: str) -> tuple[int, ...]:
    match = _RELEASE.match(version)
    numbers = [int(part) for part in match[0].split(".")] if match else [0]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _satisfies(version: str, clause: str) -> bool:
    """Compare release numbers; a clause of another form is taken as met, pip decides on it."""
    match = _CLAUSE.match(clause)
    if match is None or match[3]:
        return True
    have, want = _release(version), _release(match[2])
    lower = have >= want
    outcomes = {
        ">=": lower,
        ">": have > want,
        "<=": have <= want,
        "<": have < want,
        "==": have == want,
        "!=": have != want,
        "~=": lower and have[: match[2].count(".")] == want[: match[2].count(".")],
    }
    return outcomes[match[1]]
