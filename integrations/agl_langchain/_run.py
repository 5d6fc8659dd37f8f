"""One run of LangChain, from its start callback to its end callback."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from agl_core.types import Scope
from agl_langchain._agents import Names

if TYPE_CHECKING:
    from agl_langchain._runs import RunTable

FRAMEWORK: Final = "langchain"


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Start:
    """One start callback, whatever its kind."""

    run_id: UUID
    parent_run_id: UUID | None
    name: str
    metadata: Mapping[str, Any] | None
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(eq=False, slots=True)
class Run:
    """One open run."""

    table: RunTable
    run_id: UUID
    scope: Scope
    """Also holds the id of the run's span."""
    names: Names
    in_named_agent: bool
    parent: Run | None
    speaker: Run | None
    """The run with which the agent that speaks here began; None for an agent named elsewhere."""
    agent_shown: bool = False
    """The span of this run, if it began an agent, says so."""
    outer_call: Run | None = None
    """Model calls: one that was open here and had not sent, perhaps a wrapper around this one."""
    wraps_call: bool = False


def control_flow() -> tuple[type[BaseException], ...]:
    """Exceptions that only carry control, so that the run they leave has not failed.

    LangGraph's interrupts and parent commands, told by class identity and never by name.
    """
    # Not imported here: LangChain works without LangGraph, and who raises has imported it.
    bubble_up = getattr(sys.modules.get("langgraph.errors"), "GraphBubbleUp", None)
    return () if bubble_up is None else (bubble_up,)
