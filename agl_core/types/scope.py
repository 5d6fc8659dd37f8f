"""Who is speaking right now: the identity that a request carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ScopeKind = Literal["call", "agent", "tool", "operation"]


@dataclass(slots=True, eq=False)
class Scope:
    """One open scope; scopes nest through `parent` and live in a context variable.

    A ``call`` scope expects exactly one logical send, an ``agent`` scope any number. A ``tool``
    scope suspends the agent around it: a model called inside a tool belongs to no agent unless a
    scope inside the tool names one. An ``operation`` scope only adds structure.
    """

    kind: ScopeKind
    span_id: str
    """Span that this scope's children hang under."""
    agent: str | None = None
    """Agent that speaks here; None inherits nothing for ``tool`` and the parent's otherwise."""
    agent_run_id: str | None = None
    trainable: bool = True
    parent: Scope | None = None
    call_id: str | None = None
    """``call`` scopes: minted by the first send."""
    body_hash: int | None = None
    """``call`` scopes: of the last sent body; an id is reused only for the same body."""
    unanswered: bool = False
    """``call`` scopes: the last send failed, so the next one is still the same call."""
    closed: bool = False
    """Ended, perhaps from another task or thread than the one in which it is still current."""
