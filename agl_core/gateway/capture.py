"""Assemble what a backend answered into choices with exact tokens, and check that they agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agl_core.gateway.dialects.chat_answer import Message, Payload, Row
from agl_core.serving.problem_text import error_text
from agl_core.types import Choice

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

    def add(self, row: Row) -> None:
        """Add a row of ``choices``, whole or a delta."""
        if row.token_ids:
            self.token_ids += row.token_ids
        if row.logprobs is not None and row.logprobs.content:
            self.logprobs += [entry.logprob for entry in row.logprobs.content]
        self.finish_reason = row.finish_reason or self.finish_reason
        message = row.message or row.delta
        if message is not None:
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

    def freeze(self) -> Choice:
        return Choice(
            index=self.index,
            token_ids=self.token_ids,
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
        """Every choice that was asked for has its finish reason."""
        reasons = [choice.finish_reason for choice in self._choices.values()]
        return len(reasons) >= self.expected_choices and None not in reasons

    @property
    def choices(self) -> list[Choice]:
        return [self._choices[index].freeze() for index in sorted(self._choices)]

    @property
    def has_tokens(self) -> bool:
        """The prompt's ids and those of every choice are there."""
        ids = [choice.token_ids for choice in self._choices.values()]
        return bool(self.prompt_token_ids and ids) and all(ids)

    def mismatch(self) -> str:
        """How the token streams contradict each other; empty when they agree or there are none.

        Compared are the number of log-probabilities with the number of ids per choice, and the ids
        of all choices with the completion tokens that the backend says it sampled: a server that
        drops ids along with the text it parses away drops them from both streams.
        """
        choices = self._choices.values()
        if not any(choice.token_ids for choice in choices):
            return ""
        if not self.has_tokens:
            return "token ids of the prompt or of a choice are missing"
        for choice in choices:
            ids, logprobs = len(choice.token_ids), len(choice.logprobs)
            if ids != logprobs:
                return f"choice {choice.index} has {ids} token ids but {logprobs} log-probabilities"
        total = sum(len(choice.token_ids) for choice in choices)
        sampled = self.usage.get("completion_tokens")
        if sampled is not None and sampled != total:
            return f"the backend sampled {sampled} tokens but returned the ids of {total}"
        return ""


def _text(value: Any) -> str:
    """Text as it is; parts, which some servers send instead, as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
