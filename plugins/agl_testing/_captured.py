"""Checks of an attempt's records against the model server's log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from agl_core import semconv
from agl_core.errors import CaptureError
from agl_core.types import ModelCall, Span, SpanKind, Triplet
from agl_testing.bench import Played
from agl_testing.fake_openai import Answered


def speaker(call: ModelCall) -> str:
    """Return the agent that made a call: every agent of the scenario requests its own model."""
    return call.model.rpartition("@")[0]


def check_tokens(played: Played, log: Sequence[Answered]) -> None:
    """Check that every recorded call equals its answer in the backend's log."""
    answers = {answer.id: answer for answer in log}
    assert played.calls, "the gateway recorded no call"
    for call in played.calls:
        answer = answers[call.response_id]
        assert call.prompt_token_ids.tolist() == answer.prompt_token_ids, f"prompt ids of {call.id}"
        assert call.messages == answer.body["messages"], f"messages of {call.id}"
        assert call.tools == answer.body.get("tools", []), f"tools of {call.id}"
        for choice, sampled in zip(call.choices, answer.choices, strict=True):
            assert choice.token_ids.tolist() == sampled.token_ids, f"response ids of {call.id}"
            assert choice.logprobs.tolist() == sampled.logprobs, f"log-probabilities of {call.id}"
            assert choice.text == sampled.text, f"text of {call.id}"
            assert choice.tool_calls == sampled.tool_calls, f"tool calls of {call.id}"


def check_identity(
    played: Played, *, names: Mapping[str, str | None] | None = None
) -> dict[str, Span]:
    """Check that each call has one LLM span, and that both have the agent that made the call.

    Args:
        played: The attempt.
        names: Agent to the name that must be recorded, if they differ.

    Returns:
        The LLM spans by call id.
    """
    spans: dict[str, Span] = {}
    for span in played.spans:
        if span.kind is SpanKind.LLM:
            assert span.call_id, f"LLM span {span.name!r} of {span.agent!r} has no call"
            assert span.call_id not in spans, f"call {span.call_id} has two LLM spans"
            spans[span.call_id] = span
    assert spans.keys() == {call.id for call in played.calls}, "LLM spans and calls differ"
    for call in played.calls:
        real = speaker(call)
        expected = (names or {}).get(real, real)
        recorded, traced = call.agent or None, spans[call.id].agent
        assert recorded == expected, f"{real} called, the gateway recorded {recorded!r}"
        assert traced == expected, f"{real} called, the span names {traced!r}"
        assert call.rollout_id == played.record.rollout.id, "a call of another rollout"
        assert call.model == played.job.model(real), "a call of another rollout"
        if expected is not None:
            assert call.agent_run_id, f"call of {real} names no agent run"
            assert call.agent_run_id == spans[call.id].agent_run_id, "two agent runs for one call"
    return spans


def usage(played: Played) -> dict[str, dict[str, int]]:
    """Return the usage in the spans by response id, in OpenAI's form."""
    answered = {call.id: call.response_id for call in played.calls}
    found: dict[str, dict[str, int]] = {}
    for span in played.spans:
        if semconv.GEN_AI_USAGE_INPUT_TOKENS in span.attributes:
            prompt = span.attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS]
            completion = span.attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS]
            found[answered[span.call_id or ""]] = {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            }
    return found


def without_ids(value: Any) -> Any:
    """Return a JSON value without the ids in it, which differ from run to run."""
    if isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value)
        return {
            name: without_ids(item)
            for name, item in named.items()
            if name not in ("id", "tool_call_id")
        }
    if isinstance(value, (list, tuple)):
        return [without_ids(item) for item in cast("Sequence[Any]", value)]
    return value


def with_prompt(played: Played, agent: str, old: str, new: str) -> Any:
    """Return messages and tools without ids, with another text in the heads of an agent's calls.

    A message with the new text comes first if there is no old text.
    """
    expected: list[Any] = []
    for call in played.calls:
        messages = call.messages
        if speaker(call) == agent and not old:
            messages = [{"role": "system", "content": new}, *messages]
        elif speaker(call) == agent:
            head = json.loads(json.dumps(messages[0]).replace(json.dumps(old)[1:-1], new))
            assert head != messages[0], f"the first message of {agent} has no {old!r}"
            messages = [head, *messages[1:]]
        expected.append((messages, call.tools))
    return without_ids(expected)


def ancestors(spans: Sequence[Span], span: Span) -> list[Span]:
    """Return the spans around `span`, nearest first."""
    known = {each.id: each for each in spans}
    found: list[Span] = []
    while span.parent_id is not None and span.parent_id in known:
        span = known[span.parent_id]
        found.append(span)
    return found


def triplets(played: Played, *agents: str) -> list[Triplet]:
    """Return the triplets of `agents` in causal order."""
    adapted = played.adapt(*agents)
    found = [
        call
        for paths in adapted.trajectories.values()
        for trajectory in paths
        for call in trajectory.calls
    ]
    return sorted(found, key=lambda triplet: (triplet.agent, triplet.ordinal))


def comparable(found: Sequence[Triplet]) -> list[dict[str, Any]]:
    """Return triplets without the fields that differ between two equivalent runs."""
    volatile = {"call_id", "rollout_id", "attempt_id", "agent_run_id", "logprobs"}
    return [
        {
            name: value
            for name, value in msgspec.structs.asdict(each).items()
            if name not in volatile
        }
        for each in found
    ]


def check_wrong_join_is_caught(played: Played) -> None:
    """Exchange the calls of two agents' spans: the join must refuse the attempt."""
    spans = list(played.record.spans)
    traced = [
        at for at, span in enumerate(spans) if span.kind is SpanKind.LLM and span.call is None
    ]
    first, last = traced[0], traced[-1]
    assert spans[first].agent != spans[last].agent
    spans[first], spans[last] = (
        msgspec.structs.replace(spans[first], call_id=spans[last].call_id),
        msgspec.structs.replace(spans[last], call_id=spans[first].call_id),
    )
    try:
        played.with_spans(spans).adapt("*")
    except CaptureError:
        return
    raise AssertionError("calls of two agents were exchanged without an error")
