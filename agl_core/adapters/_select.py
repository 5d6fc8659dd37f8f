"""Selection of the agents to train, by exact names or globs."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from agl_core.errors import ConfigError
from agl_core.types import Policy
from agl_core.types.rollout import RESERVED_PREFIX, agent_matches, any_matches


class AgentSelector:
    """The selection of the agents that a run trains."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Build a selector from exact names or globs (``*``, ``?``, ``[...]``), case-sensitive.

        Raises:
            ConfigError: a pattern is empty or can only match reserved names.
        """
        for pattern in patterns:
            if not pattern or pattern.startswith(RESERVED_PREFIX):
                raise ConfigError(
                    f"Agent pattern {pattern!r} cannot be trained: give the name of one of your "
                    f"agents, or a glob; names that begin with {RESERVED_PREFIX!r} are the "
                    f"framework's own"
                )
        self.patterns = tuple(patterns)

    def matches(self, agent: str | None) -> bool:
        """Return whether the agent is trained; False for reserved names and for no agent."""
        if not agent or agent.startswith(RESERVED_PREFIX):
            return False
        return any_matches(self.patterns, agent)

    def check(self, seen: Collection[str]) -> None:
        """Check that every pattern matches an agent in `seen`, where "" means calls without agent.

        Raises:
            ConfigError: a pattern matches no agent.
        """
        names = sorted(name for name in seen if name and not name.startswith(RESERVED_PREFIX))
        for pattern in self.patterns:
            if any(agent_matches(pattern, name) for name in names):
                continue
            instead = _instead(pattern, names, nameless="" in seen)
            raise ConfigError(f"Agent {pattern!r} was not seen{instead}")


def _instead(pattern: str, names: Sequence[str], *, nameless: bool) -> str:
    """Return the rest of the error message: the agents that were seen, and a fix."""
    name_it = (
        f"Name the agent: attach the framework's integration, leave its tracing enabled, or use "
        f"agl.agent_scope({pattern!r})"
    )
    if not names and nameless:
        return f", nor was any other: there were only calls without an agent. {name_it}"
    if not names:
        return (
            ", nor was any other: no call reached the gateway. Let the agents' clients use "
            "agl.current().llm"
        )
    nearest = difflib.get_close_matches(pattern, names, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    others = f" and calls without an agent. {name_it}" if nameless else ""
    return f"; seen were {names}{hint}{others}"


def serving_policy(agent: str, policies: Sequence[Policy]) -> Policy | None:
    """Return the first policy in config order with a pattern that matches the agent."""
    return next((policy for policy in policies if policy.serves(agent)), None)
