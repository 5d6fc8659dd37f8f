"""An answer in the form of legacy completions, from the chunks of a chat completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agl_core.clocks import new_id, wall
from agl_core.interfaces import AnswerDelta, TokenUsage


class CompletionBuilder:
    """Assembles a completion. Implements `agl_core.interfaces.DialectAnswer`."""

    def __init__(self, model: str, *, usage: bool) -> None:
        """Begin an answer; with `usage`, a stream ends with the number of tokens."""
        self._head: dict[str, Any] = {
            "id": "",
            "object": "text_completion",
            "created": int(wall()),
            "model": model,
        }
        self._with_usage = usage
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._finish: str | None = None
        self._usage: TokenUsage | None = None

    def add(self, delta: AnswerDelta) -> bytes:
        self._head["id"] = self._head["id"] or delta.id or new_id("cmpl")
        text = delta.content + delta.refusal
        self._text.append(text)
        self._reasoning.append(delta.reasoning)
        new = delta.finish_reason if self._finish is None else None
        self._finish = self._finish or delta.finish_reason
        self._usage = delta.usage or self._usage
        if not (text or delta.reasoning or new):
            return b""
        return self._event(choices=[_choice(text, delta.reasoning, new)])

    def end(self) -> bytes:
        usage = b""
        if self._with_usage:
            usage = self._event(choices=[], usage=_counts(self._usage))
        return usage + b"data: [DONE]\n\n"

    def document(self) -> bytes:
        choice = _choice("".join(self._text), "".join(self._reasoning), self._finish)
        return msgspec.json.encode(
            {**self._head, "choices": [choice], "usage": _counts(self._usage)}
        )

    def fail(self, error: Mapping[str, Any]) -> bytes:
        stated = {
            "message": str(error.get("message") or "The answer ended early"),
            "type": error.get("type") or "gateway_error",
            "param": error.get("param"),
            "code": error.get("code") or "engine_error",
        }
        return _event({"error": stated})

    def _event(self, **fields: Any) -> bytes:
        return _event({**self._head, **fields})


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(content, enc_hook=str) + b"\n\n"


def _choice(text: str, reasoning: str, finish: str | None) -> dict[str, Any]:
    thoughts = {"reasoning": reasoning} if reasoning else {}
    return {"index": 0, "text": text, **thoughts, "logprobs": None, "finish_reason": finish}


def _counts(usage: TokenUsage | None) -> dict[str, int] | None:
    if usage is None:
        return None
    prompt, answer = usage.prompt_tokens or 0, usage.completion_tokens or 0
    total = usage.total_tokens or prompt + answer
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": total}
