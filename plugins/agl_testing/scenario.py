"""The canonical scenario: planner, tool, writer; three calls whose texts do not identify an agent.

The author of an integration writes `ScenarioProgram` once in the framework. The contract runs it in
every form and compares the records with the model server's log.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from agl_core.types import Span, SpanKind
from agl_testing.fake_openai import FakeReply

__all__ = [
    "ANSWER",
    "CAPABILITIES",
    "EXPECTED",
    "ITEM",
    "JUDGE",
    "PLANNER",
    "SYSTEM",
    "TOOL",
    "TOOL_RESULT",
    "WRITER",
    "Job",
    "Node",
    "ScenarioProgram",
    "outline",
    "reply",
    "skeleton",
]

PLANNER: Final = "planner"
WRITER: Final = "writer"
JUDGE: Final = "judge"
SYSTEM: Final = "Answer in one sentence."
"""System prompt of every agent: prompts do not identify agents."""
ITEM: Final = "tea"
TOOL: Final = "lookup"
TOOL_RESULT: Final = "4 coins"
ANSWER: Final = "Tea is 4 coins."
"""Final answer of every agent: answers do not identify agents either."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the scenario: its endpoint and its key."""

    base_url: str
    api_key: str
    key: str = "0"
    """Differs between the runs of one test."""

    @property
    def question(self) -> str:
        """The user's text, the first message after the first agent's system prompt."""
        return f"What is the price of {ITEM}? ({self.key})"

    def model(self, agent: str) -> str:
        """Return the model name that `agent` must request.

        It reaches the gateway in the request's body, independent of the identity under test, so it
        shows which agent made the call.
        """
        return f"{agent}@{self.key}"


CAPABILITIES: Final = (
    "arun",
    "stream",
    "astream",
    "structured",
    "parallel",
    "delegate",
    "judge",
)
"""Methods of a program that a framework may lack, with a reason."""


class ScenarioProgram(ABC):
    """The scenario in one framework. Every method creates new agents, as a user's code would.

    The planner has a tool `TOOL` with one text argument, ``item``, that returns `TOOL_RESULT`. The
    planner's final answer is the writer's input. All agents have the system prompt `SYSTEM` and use
    the model ``job.model(agent)``.
    """

    lacks: ClassVar[Mapping[str, str]] = {}
    """Missing capability to the reason."""
    wraps_errors: ClassVar[str] = ""
    """Why the framework raises another error, caused by the one that `fail` gets."""
    sends_once: ClassVar[str] = ""
    """Why a failed request is not sent again."""
    hides_usage: ClassVar[str] = ""
    """Why the framework's spans have no token usage; the gateway's record has it."""
    sends_no_head: ClassVar[str] = ""
    """Why the system prompt is in a user's message; a captured prompt is then inserted."""

    @abstractmethod
    def run(self, job: Job) -> str:
        """Run planner, tool, planner, writer; return the writer's answer."""

    async def arun(self, job: Job) -> str:
        """Do the same as `run` with the framework's async interface."""
        raise NotImplementedError

    def stream(self, job: Job) -> str:
        """Do the same as `run` with streamed model calls, read to their end."""
        raise NotImplementedError

    async def astream(self, job: Job) -> str:
        """Do the same as `stream` with the framework's async interface."""
        raise NotImplementedError

    def structured(self, job: Job) -> Mapping[str, Any]:
        """Have the writer answer `Job.question` as an object with one text field, ``item``."""
        raise NotImplementedError

    async def parallel(self, job: Job) -> Sequence[str]:
        """Ask planner (without tools) and writer `Job.question` at the same time."""
        raise NotImplementedError

    def delegate(self, job: Job) -> str:
        """Use the writer as the planner's tool: planner, tool with writer inside, planner."""
        raise NotImplementedError

    def judge(self, job: Job) -> str:
        """Have the planner's tool call the model `JUDGE` directly, without naming an agent."""
        raise NotImplementedError

    @abstractmethod
    def fail(self, job: Job, error: Exception) -> str:
        """Do the same as `run` with a tool that raises `error`; nothing catches it."""


def reply(body: Mapping[str, Any]) -> FakeReply:
    """Return the model's reply: request the first tool until its result arrives, then answer."""
    arguments = json.dumps({"item": ITEM})
    tools: Sequence[Mapping[str, Any]] = body.get("tools") or ()
    if tools and body["messages"][-1]["role"] != "tool":
        return FakeReply(
            tool_calls=[{"name": tools[0]["function"]["name"], "arguments": arguments}]
        )
    if body.get("response_format"):
        return FakeReply(text=arguments)
    return FakeReply(text=ANSWER)


@dataclass(frozen=True)
class Node:
    """One span of a skeleton, without what differs between frameworks and runs."""

    kind: str
    agent: str | None
    children: tuple[Node, ...] = field(default=())


def _llm(agent: str) -> Node:
    return Node("llm", agent)


EXPECTED: Final = (
    Node("agent", PLANNER, (_llm(PLANNER), Node("tool", PLANNER), _llm(PLANNER))),
    Node("agent", WRITER, (_llm(WRITER),)),
)
"""Skeleton of `ScenarioProgram.run` in every framework."""

_STRUCTURE: Final = (SpanKind.AGENT, SpanKind.LLM, SpanKind.TOOL)


def skeleton(spans: Sequence[Span]) -> tuple[Node, ...]:
    """Return agents, tools and calls, nested and in order; children of other spans move up."""
    recorded = [span for span in sorted(spans, key=lambda s: s.order) if span.call is None]
    known = {span.id for span in recorded}
    children: dict[str | None, list[Span]] = {}
    for span in recorded:
        parent = span.parent_id if span.parent_id in known else None
        children.setdefault(parent, []).append(span)

    def below(parent: str | None) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for span in children.get(parent, ()):
            inside = below(span.id)
            if span.kind in _STRUCTURE:
                nodes.append(Node(span.kind.value, span.agent, inside))
            else:
                nodes.extend(inside)
        return tuple(nodes)

    return below(None)


def _who_or_what(span: Span) -> str:
    """Return the agent of agent and llm spans, whose names differ by framework; else the name."""
    speaks = span.kind in (SpanKind.AGENT, SpanKind.LLM)
    return f"{span.kind.value} {(span.agent or '-') if speaks else span.name}"


def outline(
    spans: Sequence[Span],
    kinds: Collection[str] = (),
    *,
    show: Callable[[Span], str] = _who_or_what,
) -> list[str]:
    """Return one line per span, indented by its depth; of all spans, unlike `skeleton`.

    Args:
        spans: In the order of their lines.
        kinds: Only spans of these kinds; every kind when empty.
        show: Returns a span's line without its indent.
    """
    shown = [span for span in spans if not kinds or span.kind.value in kinds]
    parents = {span.id: span.parent_id for span in spans}
    ids = {span.id for span in shown}

    def depth(span: Span) -> int:
        at, found = span.parent_id, 0
        while at is not None:
            found += at in ids
            at = parents.get(at)
        return found

    return [". " * depth(span) + show(span) for span in shown]
