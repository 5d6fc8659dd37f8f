"""Breaks: calls whose prompt does not continue an earlier call token by token, and the causes."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from agl_core.adapters import media
from agl_core.interfaces import AdaptedAttempt, AttemptRecord
from agl_core.thinking import split_thinking, without_thinking
from agl_core.types import Choice, Ints, ModelCall
from agl_core.types.run import Cause, sum_breaks
from agl_doctor._calls import OwnedCall, owned_calls

Message = Mapping[str, Any]

_SYSTEM: Final = frozenset({"system", "developer"})
_WINDOW: Final = 12
"""Number of tokens shown from the first that differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A call that does not continue an earlier call of its agent run."""

    agent: str
    policy: str
    call_id: str
    cause: Cause
    shared: int
    """Number of leading tokens that its prompt shares with the closest earlier call."""
    cost: int
    """Number of tokens of the closest call's prompt and answer that are not shared."""
    expected: tuple[int, ...]
    """Token ids of the closest call, from the first that differs."""
    found: tuple[int, ...]
    """Token ids of this call's prompt, from the first that differs."""


@dataclass(slots=True)
class Continuity:
    """The breaks of agent runs, and the number of calls that could have one."""

    later: int = 0
    """Number of calls that were sent after another call of their run was answered."""
    breaks: tuple[Break, ...] = ()

    @property
    def by_agent(self) -> dict[str, dict[str, int]]:
        """Number of breaks by agent and likely cause, without those of cause ``other``."""
        counts: dict[str, dict[str, int]] = {}
        for one in self.breaks:
            if one.cause != "other":
                of_agent = counts.setdefault(one.agent, {})
                of_agent[one.cause] = of_agent.get(one.cause, 0) + 1
        return counts


def breaks(record: AttemptRecord, adapted: AdaptedAttempt) -> dict[str, dict[str, int]]:
    """Return the numbers of breaks of an attempt's trained calls, by agent and likely cause."""
    trained = {
        triplet.call_id
        for paths in adapted.trajectories.values()
        for path in paths
        for triplet in path.calls
    }
    found = continuity(owned for owned in owned_calls(record) if owned.call.id in trained)
    names = adapted.aliases
    return sum_breaks({names.get(agent, agent): n} for agent, n in found.by_agent.items())


def continuity(calls: Iterable[OwnedCall]) -> Continuity:
    """Find the breaks in every agent run of some attempts.

    A call continues an earlier call if its prompt begins with that call's prompt and one of its
    choices. Only calls that were answered before it was sent count as earlier. A call that repeats
    an earlier prompt is not a break.
    """
    runs: dict[tuple[str, str, str], list[OwnedCall]] = defaultdict(list)
    for answered in calls:
        runs[answered.call.attempt_id, answered.agent, answered.agent_run_id].append(answered)
    found = Continuity()
    for of_run in runs.values():
        ordered = sorted(of_run, key=lambda answered: (answered.call.started_ns, answered.call.id))
        for position, answered in enumerate(ordered):
            earlier = [
                one.call
                for one in ordered[:position]
                if one.call.ended_ns <= answered.call.started_ns
            ]
            if earlier:
                found.later += 1
                broken = _break(answered, earlier)
                found.breaks += (broken,) if broken is not None else ()
    return found


def _break(after: OwnedCall, earlier: Sequence[ModelCall]) -> Break | None:
    prompt = after.call.prompt_token_ids
    if any(_continues(after.call, before) for before in reversed(earlier)):
        return None
    options = ((before, choice) for before in reversed(earlier) for choice in before.choices)
    closest: tuple[int, ModelCall, Choice] | None = None
    for before, choice in options:
        shared = _shared(before.prompt_token_ids + choice.token_ids, prompt)
        if closest is None or shared > closest[0]:
            closest = (shared, before, choice)
    if closest is None:
        return None
    shared, before, choice = closest
    whole = before.prompt_token_ids + choice.token_ids
    return Break(
        agent=after.agent,
        policy=after.call.policy,
        call_id=after.call.id,
        cause=cause(before, choice, after.call, shared=shared),
        shared=shared,
        cost=len(whole) - shared,
        expected=tuple(whole[shared : shared + _WINDOW]),
        found=tuple(prompt[shared : shared + _WINDOW]),
    )


def _continues(after: ModelCall, before: ModelCall) -> bool:
    """Return whether the prompt of `after` continues or repeats `before`."""
    prompt, length = after.prompt_token_ids, len(before.prompt_token_ids)
    if prompt[:length] != before.prompt_token_ids:
        return False
    seen = media(before)
    if media(after)[: len(seen)] != seen:
        return False
    rest = prompt[length:]
    return not rest or any(
        rest[: len(choice.token_ids)] == choice.token_ids for choice in before.choices
    )


def _shared(one: Ints, other: Ints) -> int:
    """Return the length of the common prefix; bisection compares array slices, which is fast."""
    longest = min(len(one), len(other))
    return bisect_left(range(1, longest + 1), True, key=lambda n: one[:n] != other[:n])


def cause(before: ModelCall, choice: Choice, after: ModelCall, *, shared: int) -> Cause:
    """Return the likely cause of a break, from the first difference in messages, then in tokens.

    Args:
        before: The earlier call with the longest prefix in common with `after`.
        choice: The choice of `before` with the longest prefix in common.
        after: The call that does not continue `before`.
        shared: Number of tokens in the common prefix.
    """
    if before.tools != after.tools:
        return "tools"
    old, new = before.messages, after.messages
    one, other = _instructions(old), _instructions(new)
    if one != other:
        return "whitespace" if one.split() == other.split() else "system"
    kept = _kept(old, new)
    if kept < len(old):
        return _History(old, new, before.thinking_tags).cause(kept, answer=choice.text)
    answer = new[len(old)] if len(new) > len(old) else None
    if answer is None or answer.get("role") != "assistant":
        return "answer"
    tags = before.thinking_tags
    return _in_answer(choice, answer, tags) or _in_tokens(before, choice, shared=shared)


def _instructions(messages: Sequence[Message]) -> str:
    return "\n".join(text_of(m) for m in messages if m.get("role") in _SYSTEM)


def _kept(old: Sequence[Message], new: Sequence[Message]) -> int:
    """Return the number of leading messages that are equal."""
    for position, (one, other) in enumerate(zip(old, new, strict=False)):
        if _key(one) != _key(other):
            return position
    return min(len(old), len(new))


@dataclass(frozen=True, slots=True)
class _History:
    """The messages of two calls, where the later call changed or left out earlier messages."""

    old: Sequence[Message]
    new: Sequence[Message]
    tags: Sequence[str]

    def cause(self, kept: int, *, answer: str) -> Cause:
        old, new = self.old, self.new
        if kept >= len(new):
            return "trimmed"
        changed = self._change(old[kept], new[kept])
        if changed is not None:
            return changed
        seen = [_key(message) for message in old]
        survivors = [m for m in new if _key(m) in seen and m.get("role") not in _SYSTEM]
        if _key(new[kept]) in seen:
            return "trimmed"
        answered = any(m.get("role") == "assistant" and text_of(m) == answer for m in new)
        others = [m for m in old if m.get("role") not in _SYSTEM]
        if not survivors and not answered:
            return "summary" if len(others) > 1 and len(new) <= len(old) else "other"
        return "edited" if len(new) > len(old) else "summary"

    def _change(self, old: Message, new: Message) -> Cause | None:
        """Return how a message was changed; None if it is a different message."""
        if old.get("role") != new.get("role"):
            return None
        one, other = text_of(old), text_of(new)
        if one == other:
            return _changed_calls(_calls(old), _calls(new))
        return _changed_text(one, other, self.tags) or _dropped_text(other, _calls(new))


def _changed_text(one: str, other: str, tags: Sequence[str]) -> Cause | None:
    if " ".join(one.split()) == " ".join(other.split()):
        return "whitespace"
    if without_thinking(one, tags=tags).split() == without_thinking(other, tags=tags).split():
        return "thinking"
    return None


def _dropped_text(left: str, calls: Sequence[Any]) -> Cause | None:
    return "text" if calls and not left.strip() else None


def _changed_calls(one: Sequence[Any], other: Sequence[Any]) -> Cause | None:
    if one == other:
        return None
    return "tool_calls" if _meant(one) == _meant(other) else "edited"


def _in_answer(choice: Choice, sent: Message, tags: Sequence[str]) -> Cause | None:
    """Return how the answer differs from the message in the later prompt; None if it does not."""
    back = text_of(sent)
    thought = sent.get("reasoning_content") or sent.get("reasoning")
    if choice.reasoning and not thought and choice.reasoning.strip() not in back:
        return "thinking"
    if choice.text != back:
        changed = _changed_text(choice.text, back, tags)
        return changed or _dropped_text(back, choice.tool_calls) or "edited"
    return _changed_calls(choice.tool_calls, _calls(sent))


def _in_tokens(before: ModelCall, choice: Choice, *, shared: int) -> Cause:
    """Return the likely cause in the chat template or tokeniser, if no message was changed."""
    if shared < len(before.prompt_token_ids):
        return _rendered(before.messages, before.thinking_tags) or "template"
    sampled = {
        "content": choice.text,
        "reasoning": choice.reasoning,
        "tool_calls": choice.tool_calls,
    }
    return _rendered([sampled], before.thinking_tags) or "tokens"


def _rendered(messages: Sequence[Message], tags: Sequence[str]) -> Cause | None:
    """Return a cause that chat templates are known for, if the messages have such content."""
    answers = [m for m in messages if m.get("role", "assistant") == "assistant"]
    if any(m.get("reasoning") or _thinks(text_of(m), tags) for m in answers):
        return "thinking"
    if any(_calls(m) for m in answers):
        return "tool_calls"
    if any(text_of(m) != text_of(m).strip() for m in answers):
        return "whitespace"
    return None


def _thinks(text: str, tags: Sequence[str]) -> bool:
    return any(part.kind == "thinking" for part in split_thinking(text, tags=tags))


def text_of(message: Message) -> str:
    """Return a message's text, with text parts joined."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    texts = [cast("Message", part) for part in parts if isinstance(part, Mapping)]
    return "".join(str(part.get("text", "")) for part in texts)


def _calls(message: Message) -> list[Any]:
    return list(message.get("tool_calls") or [])


def _key(message: Message) -> tuple[Any, ...]:
    calls = json.dumps(_calls(message), sort_keys=True)
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return (message.get("role"), text_of(message), calls, message.get("tool_call_id"), reasoning)


def _meant(calls: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return names and parsed arguments of tool calls, to ignore differences in JSON formatting."""
    found: list[tuple[Any, Any]] = []
    for call in calls:
        function: Mapping[str, Any] = call.get("function") or {}
        arguments = function.get("arguments")
        with suppress(ValueError):
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        found.append((function.get("name"), arguments))
    return found
