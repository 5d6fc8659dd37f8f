"""Assemble what a backend answered into choices with exact tokens, and check that they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agl_core.gateway.dialects.chat import FINISH_REASONS
from agl_core.gateway.dialects.chat_answer import Message, Payload, Row
from agl_core.serving.problem_text import error_text
from agl_core.types import Choice
from agl_core.types.span import ID_LIMIT

__all__ = ["Answer", "AnsweredChoice"]


class AnsweredChoice(msgspec.Struct):
    """One choice while it is being received."""

    index: int
    token_ids: list[int] = []
    logprobs: list[float] = []
    text: list[str] = []
    reasoning: list[str] = []
    tool_calls: dict[int, dict[str, Any]] = {}
    finish_reason: str | None = None
    without_ids: bool = False
    """Something was said in a row that carried no token ids."""

    def add(self, row: Row) -> None:
        """Add a row of ``choices``, whole or a delta."""
        if row.token_ids:
            self.token_ids += row.token_ids
        if row.logprobs is not None and row.logprobs.content:
            self.logprobs += [entry.logprob for entry in row.logprobs.content]
        self.finish_reason = row.finish_reason or self.finish_reason
        message = row.message or row.delta
        if message is not None:
            said = message.content or message.reasoning_content or message.reasoning
            self.without_ids |= bool(said or message.tool_calls) and not row.token_ids
            self._add_message(message)

    def _add_message(self, message: Message) -> None:
        if message.content:
            self.text.append(_text(message.content))
        if reasoning := message.reasoning_content or message.reasoning:
            self.reasoning.append(_text(reasoning))
        for position, call in enumerate(message.tool_calls or ()):
            self._add_tool_call(call.get("index", position), call)

    def _add_tool_call(self, index: int, part: Mapping[str, Any]) -> None:
        function: dict[str, Any] = part.get("function") or {}
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self.tool_calls.setdefault(index, empty)
        call["id"] = part.get("id") or call["id"]
        call["type"] = part.get("type") or call["type"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += _text(function.get("arguments") or "")

    @property
    def empty(self) -> bool:
        """The model ended its answer before it said anything."""
        return not (self.token_ids or self.text or self.reasoning or self.tool_calls)

    def freeze(self) -> Choice:
        return Choice(
            index=self.index,
            token_ids=_storable(self.token_ids),
            logprobs=self.logprobs,
            text="".join(self.text),
            reasoning="".join(self.reasoning),
            tool_calls=[self.tool_calls[index] for index in sorted(self.tool_calls)],
            finish_reason=self.finish_reason,
        )


class Answer(msgspec.Struct):
    """A backend's answer to one request, from a whole body or from chunks."""

    expected_choices: int
    response_id: str = ""
    model: str = ""
    """Name the backend gave."""
    prompt_token_ids: list[int] = []
    usage: dict[str, Any] = {}
    error: str = ""
    """What the backend reported inside an answer with status 200."""
    aborted: bool = False
    """The backend gave up a choice halfway, as vLLM and SGLang do when weights change."""
    _choices: dict[int, AnsweredChoice] = {}

    def add(self, payload: Payload) -> None:
        """Take a whole answer or one chunk; prompt ids count from the first that has them."""
        self.response_id = self.response_id or payload.id or ""
        self.model = self.model or payload.model or ""
        self.prompt_token_ids = self.prompt_token_ids or payload.prompt_token_ids or []
        self.usage = payload.usage or self.usage
        if payload.error:
            self.error = error_text({"error": payload.error})
        for row in payload.choices or ():
            self.aborted = self.aborted or row.finish_reason == "abort"
            index = row.index or 0
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = AnsweredChoice(index)
            choice.add(row)

    @property
    def started(self) -> bool:
        """Something was sampled."""
        return any(
            choice.token_ids or choice.text or choice.reasoning or choice.tool_calls
            for choice in self._choices.values()
        )

    @property
    def finished(self) -> bool:
        """Every choice that was asked for has the finish reason of an answer that reached its end."""
        reasons = [choice.finish_reason for choice in self._choices.values()]
        return len(reasons) >= self.expected_choices and FINISH_REASONS.issuperset(reasons)

    def shortfall(self, what: str) -> str:
        """Why the answer, which came as `what`, has not `finished`."""
        reasons = {choice.finish_reason for choice in self._choices.values()} - FINISH_REASONS
        if given := sorted(reason for reason in reasons if reason is not None):
            return f"the backend gave its answer up with finish reason {given[0]!r}"
        return f"the backend's {what} ended without a finish reason"

    @property
    def recorded_prompt(self) -> list[int]:
        """The prompt's ids as a record can hold them."""
        return _storable(self.prompt_token_ids)

    @property
    def choices(self) -> list[Choice]:
        return [self._choices[index].freeze() for index in sorted(self._choices)]

    @property
    def has_tokens(self) -> bool:
        """The prompt's ids and those of every choice are there."""
        ids = [choice.token_ids for choice in self._choices.values()]
        return bool(self.prompt_token_ids and ids) and all(ids)

    def mismatch(self, vocab_size: int | None = None, *, whole: bool = True) -> str:
        """How the token streams contradict each other; empty when they agree or there are none.

        Every id is one of the vocabulary. Compared are the number of log-probabilities with the
        number of ids per choice, and the ids of the prompt and of all choices with the tokens that
        the backend says it read and sampled: a server that drops ids along with the text it parses
        away drops them from both streams. Ids whose number nothing confirms are a mismatch too.

        Args:
            vocab_size: Ids are below it; None where it is not known.
            whole: All that the backend sends was read. Usage comes last in a stream, so a client
                that leaves after the finish reason leaves before it; then every piece of the answer
                has to come with ids.
        """
        choices = self._choices.values()
        if not any(choice.token_ids for choice in choices):
            return ""
        spoken = [choice for choice in choices if not choice.empty]
        if not (self.prompt_token_ids and all(choice.token_ids for choice in spoken)):
            return "token ids of the prompt or of a choice are missing"
        if wrong := _outside([self.prompt_token_ids, *(c.token_ids for c in spoken)], vocab_size):
            return wrong
        for choice in spoken:
            ids, logprobs = len(choice.token_ids), len(choice.logprobs)
            if ids != logprobs:
                return f"choice {choice.index} has {ids} token ids but {logprobs} log-probabilities"
        partly = whole or any(choice.without_ids for choice in spoken)
        return self._unconfirmed(sum(len(choice.token_ids) for choice in spoken), due=partly)

    def _unconfirmed(self, total: int, *, due: bool) -> str:
        """How the numbers of ids differ from the backend's usage."""
        prompt = len(self.prompt_token_ids)
        read, sampled = (_count(self.usage, f"{kind}_tokens") for kind in ("prompt", "completion"))
        if sampled is None and due:
            return (
                f"the backend returned the ids of {total} tokens, but its usage does not state how "
                f"many it sampled, so nothing confirms that these are all"
            )
        if sampled is not None and sampled != total:
            return f"the backend sampled {sampled} tokens but returned the ids of {total}"
        if read is not None and read != prompt:
            return f"the backend read a prompt of {read} tokens but returned the ids of {prompt}"
        return ""


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if type(value) is int else None


def _outside(streams: Sequence[Sequence[int]], vocab_size: int | None) -> str:
    """The first id that no vocabulary has; empty when there is none."""
    limit = vocab_size or ID_LIMIT
    for ids in streams:
        if min(ids) >= 0 and max(ids) < limit:
            continue
        wrong = next(each for each in ids if not 0 <= each < limit)
        return f"token id {wrong} is not one of the model's, which are 0 to {limit - 1}"
    return ""


def _storable(ids: list[int]) -> list[int]:
    """No ids at all where one exceeds what a record can hold; `Answer.mismatch` says so."""
    return [] if ids and not (min(ids) >= -ID_LIMIT and max(ids) < ID_LIMIT) else ids


def _text(value: Any) -> str:
    """Text as it is; parts, which some servers send instead, as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
