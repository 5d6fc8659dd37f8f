"""The scope: the agent and span of the code inside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ScopeKind = Literal["call", "agent", "tool", "operation"]


@dataclass(slots=True, eq=False)
class Scope:
    """One open scope; `parent` links to the scope around it, a context variable to the current one.

    A ``call`` scope expects exactly one logical request, an ``agent`` scope any number. A ``tool``
    scope suspends the agent around it: a model call inside a tool has no agent unless a scope
    inside the tool names one. An ``operation`` scope does not change the agent.
    """

    kind: ScopeKind
    span_id: str
    """Parent of the spans inside this scope."""
    agent: str | None = None
    """Agent of the calls inside; None if there is no agent."""
    agent_run_id: str | None = None
    trainable: bool = True
    parent: Scope | None = None
    call_id: str | None = None
    """``call`` scopes: minted by the first send."""
    body_hash: int | None = None
    """``call`` scopes: hash of the last sent body, to recognise an SDK's retry."""
    unanswered: bool = False
    """``call`` scopes: whether the last send failed, so that the next one is the same call."""
    closed: bool = False
    """Whether it has ended; it may still be current in another task or thread."""
