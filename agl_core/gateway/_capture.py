"""Assemble a backend's answer into choices with exact tokens, and check their consistency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from agl_core.gateway._chat import FINISH_REASONS
from agl_core.gateway._chat_answer import AudioFields, ChoiceFields, MessageFields, Payload
from agl_core.gateway._tool_calls import ToolCalls, plain_text
from agl_core.interfaces import TokenUsage
from agl_core.serving import error_text
from agl_core.types import Choice, Ints, pack_floats, pack_ints
from agl_core.types.span import ID_LIMIT

__all__ = ["ReceivedAnswer", "ReceivedChoice"]

_MOST_FAULTS: Final = 8
_AUDIO: Final = "[audio]"
"""Recorded in place of speech that has no transcript."""


class ReceivedChoice(msgspec.Struct):
    """One choice while it is being received."""

    index: int
    token_ids: list[int] = []
    logprobs: list[float] = []
    text: list[str] = []
    reasoning: list[str] = []
    refusal: list[str] = []
    tool_calls: ToolCalls = msgspec.field(default_factory=ToolCalls)
    audio: list[str] = []
    finish_reason: str | None = None
    without_ids: bool = False
    """A row had content but no token ids."""

    def add(self, row: ChoiceFields, *, whole: bool) -> None:
        """Add a row of ``choices`` from a whole answer or from a chunk."""
        if row.token_ids:
            self.token_ids += row.token_ids
        if row.logprobs is not None and row.logprobs.content:
            self.logprobs += [entry.logprob for entry in row.logprobs.content]
        self.finish_reason = row.finish_reason or self.finish_reason
        message = row.content(whole=whole)
        if message is not None:
            said = message.content or message.reasoning_content or message.reasoning
            said = said or message.tool_calls or message.refusal or message.function_call
            self.without_ids |= bool(said) and not row.token_ids
            self._add_message(message, whole=whole)

    def _add_message(self, message: MessageFields, *, whole: bool) -> None:
        if message.content:
            self.text.append(plain_text(message.content))
        if reasoning := message.reasoning_content or message.reasoning:
            self.reasoning.append(plain_text(reasoning))
        if message.refusal:
            self.refusal.append(message.refusal)
        if message.tool_calls:
            self.tool_calls.add(message.tool_calls, whole=whole)
        if message.function_call is not None:
            self.tool_calls.add_function(message.function_call)
        if message.audio is not None:
            self._add_audio(message.audio)

    def _add_audio(self, part: AudioFields) -> None:
        self.audio = self.audio or [""]
        self.audio.append(part.transcript or "")

    @property
    def said(self) -> bool:
        """Whether the choice has any content or token ids."""
        texts = self.text or self.reasoning or self.refusal or self.audio
        return bool(self.token_ids or texts or self.tool_calls or self.tool_calls.function)

    @property
    def counts(self) -> bool:
        """Whether the choice is an answer and not an empty row that a content filter added."""
        return self.said or self.finish_reason is not None

    def freeze(self) -> Choice:
        function = self.tool_calls.function
        return Choice(
            index=self.index,
            token_ids=_storable(self.token_ids),
            logprobs=pack_floats(self.logprobs),
            text="".join(self.text),
            reasoning="".join(self.reasoning),
            refusal="".join(self.refusal),
            tool_calls=self.tool_calls.wire(),
            function_call=function.wire()["function"] if function is not None else None,
            audio=("".join(self.audio) or _AUDIO) if self.audio else "",
            finish_reason=self.finish_reason,
        )


class ReceivedAnswer(msgspec.Struct):
    """A backend's answer to one request, read from a whole body or from chunks."""

    expected_choices: int
    response_id: str = ""
    model: str = ""
    """The model's name in the answer."""
    prompt_token_ids: list[int] = []
    usage: TokenUsage = msgspec.field(default_factory=TokenUsage)
    error: str = ""
    """The error that the backend reported inside an answer with status 200."""
    faults: list[str] = []
    """Messages about malformed parts of the answer."""
    aborted: bool = False
    """The backend aborted a choice, as inference servers do when weights change."""
    ended: bool = False
    """Every requested choice has had a finish reason; never becomes false again."""
    _choices: dict[int, ReceivedChoice] = {}
    """By index; by position in a whole answer."""

    def add(self, payload: Payload, *, whole: bool = False) -> None:
        """Add a whole answer or one chunk; the prompt ids are those of the first that has them."""
        self.response_id = self.response_id or payload.id or ""
        self.model = self.model or payload.model or ""
        self.prompt_token_ids = self.prompt_token_ids or payload.prompt_token_ids or []
        if payload.usage is not None and (payload.usage.stated or not self.usage.stated):
            self.usage = payload.usage
        if payload.error:
            self.error = self.error or error_text({"error": payload.error})
        for fault in payload.faults:
            self.fault(fault)
        for position, row in enumerate(payload.choices or ()):
            self.aborted = self.aborted or row.finish_reason == "abort"
            index = row.index if row.index is not None else position if whole else 0
            key = position if whole else index
            choice = self._choices.get(key)
            if choice is None:
                choice = self._choices[key] = ReceivedChoice(index)
            choice.add(row, whole=whole)
        self.ended = self.ended or self.finished

    def fault(self, text: str) -> None:
        """Record that a part of the answer is malformed."""
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(text)

    @property
    def problem(self) -> str:
        """The error of the record: the backend's own, or that the answer is malformed."""
        return self.error or (f"malformed answer: {'; '.join(self.faults)}" if self.faults else "")

    @property
    def _answered(self) -> list[ReceivedChoice]:
        found = sorted(self._choices.items())
        return [choice for _, choice in found if choice.counts]

    @property
    def started(self) -> bool:
        """Whether any choice has content or token ids."""
        return any(choice.said for choice in self._choices.values())

    @property
    def finished(self) -> bool:
        """Whether every requested choice has a finish reason of a completed answer."""
        reasons = [choice.finish_reason for choice in self._answered]
        return len(reasons) >= self.expected_choices and FINISH_REASONS.issuperset(reasons)

    def shortfall(self, what: str) -> str:
        """Return why the answer is not `finished`; `what` is ``answer`` or ``stream``."""
        reasons = {choice.finish_reason for choice in self._answered} - FINISH_REASONS
        if given := sorted(reason for reason in reasons if reason is not None):
            return f"the backend aborted its answer with finish reason {given[0]!r}"
        if not self.broken_off:
            return f"the backend's {what} has fewer choices than were asked for"
        return f"the backend's {what} ended without a finish reason"

    @property
    def recorded_prompt(self) -> Ints:
        """The prompt's ids in the form of a record."""
        return _storable(self.prompt_token_ids)

    @property
    def broken_off(self) -> bool:
        """Whether a choice has no finish reason, or the answer has no choice."""
        reasons = [choice.finish_reason for choice in self._answered]
        return not reasons or None in reasons

    @property
    def choices(self) -> list[Choice]:
        return [choice.freeze() for choice in self._answered]

    @property
    def has_tokens(self) -> bool:
        """Whether the answer has the ids of the prompt and of every choice."""
        ids = [choice.token_ids for choice in self._answered]
        return bool(self.prompt_token_ids and ids) and all(ids)

    def mismatch(self, vocab_size: int | None = None, *, whole: bool = True) -> str:
        """Return how the answer's tokens are inconsistent; empty if they agree or there are none.

        Every id must be in the vocabulary. A choice must have as many log-probabilities as ids.
        The numbers of ids of the prompt and of all choices must equal the backend's usage, because
        a server that drops ids together with text that it parses drops the log-probabilities too.
        Ids whose number nothing confirms are also a mismatch.

        Args:
            vocab_size: Ids must be lower; None if it is not known.
            whole: The backend's whole output was read. Usage comes last in a stream, so a client
                that disconnects after the finish reason does so before the usage arrives; then
                every part of the answer must come with ids.
        """
        choices = self._answered
        if not any(choice.token_ids for choice in choices):
            return ""
        spoken = [choice for choice in choices if choice.said]
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
        """Return how the numbers of ids differ from the backend's usage."""
        prompt = len(self.prompt_token_ids)
        read, sampled = self.usage.prompt_tokens, self.usage.completion_tokens
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


def _outside(streams: Sequence[Sequence[int]], vocab_size: int | None) -> str:
    """Return an error that names the first id outside the vocabulary; empty if all are inside."""
    limit = vocab_size or ID_LIMIT
    for ids in streams:
        if min(ids) >= 0 and max(ids) < limit:
            continue
        wrong = next(each for each in ids if not 0 <= each < limit)
        return f"token id {wrong} is not one of the model's, which are 0 to {limit - 1}"
    return ""


def _storable(ids: list[int]) -> Ints:
    """Pack ids for a record; empty if one is too large, which `ReceivedAnswer.mismatch` reports."""
    try:
        return pack_ints(ids)
    except ValueError:
        return pack_ints()
