"""The selection of agents by ``agent_match``, as names and globs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from agl_compat._names import renamed
from agl_core.errors import ConfigError

_PLAIN: Final = re.compile(r"\^?(?:[\w @.-]|\.\*)*\$?")
ALL: Final = ("*",)


@dataclass(frozen=True, slots=True)
class TracerTraceToTriplet:
    """The adapter of training weights; only ``agent_match`` has an effect."""

    agent_match: str | None = None


class TraceToMessages:
    """The adapter of training prompts; it has no effect, as optimisers read all records."""


def agents_of(adapter: Any, trained_agents: str | None) -> list[str]:
    """Return the agents that an adapter or an agent's ``trained_agents`` selects; all by default.

    Raises:
        ConfigError: the adapter is unknown, or its pattern is no list of names.
    """
    match = trained_agents
    if isinstance(adapter, TracerTraceToTriplet):
        match = adapter.agent_match or match
    elif isinstance(adapter, Mapping):
        options = dict(cast("Mapping[str, Any]", adapter))
        match = options.pop("agent_match", None) or match
        if options:
            raise ConfigError(
                f"Trainer got adapter with {sorted(options)}: only agent_match has an equal here; "
                f"docs/migrate.md says what replaces the others"
            )
    elif adapter is not None and not isinstance(adapter, TraceToMessages):
        raise ConfigError(
            f"Trainer got adapter={adapter!r:.80}: give {{'agent_match': ...}}, "
            f"TracerTraceToTriplet or TraceToMessages"
        )
    if match is None:
        return [*ALL]
    renamed("agent_match", "agents: exact names or globs")
    return globs(match)


def globs(pattern: str) -> list[str]:
    """Return the globs that match the same names as a regular expression that searches them.

    Raises:
        ConfigError: it is more than alternatives of names with ``.*``, ``^`` and ``$``.
    """
    parts = [part for part in pattern.strip("()").split("|") if part]
    if not parts or any(_PLAIN.fullmatch(part) is None for part in parts):
        raise ConfigError(
            f"agent_match = {pattern!r} cannot be written as names or globs: use agents = [...], "
            f"such as agents = ['write*', 'rewrite']"
        )
    return [_glob(part) for part in parts]


def _glob(part: str) -> str:
    inner = part.removeprefix("^").removesuffix("$").replace(".*", "*").replace(".", "?")
    before = "" if part.startswith("^") else "*"
    after = "" if part.endswith("$") else "*"
    return re.sub(r"\*+", "*", f"{before}{inner}{after}")
