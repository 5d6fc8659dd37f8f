"""Reply documents: one JSON object, or the chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agl_torch.chat._toolcalls import ParsedPart, ToolCall, ToolCallParser
from agl_torch.chat.request import CompletionRequest
from agl_torch.chat.text import Detokenizer, StopText, Vocabulary
from agl_torch.serving.sequence import Generation, Piece


@dataclass(slots=True)
class _Choice:
    """One choice while its tokens are converted to text and tool calls."""

    detokenizer: Detokenizer
    stop: StopText
    parser: ToolCallParser | None
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    text: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    finish: str | None = None
    begun: bool = False

    def read(self, piece: Piece) -> list[ParsedPart]:
        """Return the text and calls that a piece completes."""
        text = self.stop.feed(self.detokenizer.feed(piece.tokens))
        if piece.finish is not None:
            text += self.stop.feed(self.detokenizer.finish()) + self.stop.finish()
        events: list[ParsedPart] = [text] if text else []
        if self.parser is not None:
            events = self.parser.feed(text)
            if piece.finish is not None:
                events += self.parser.finish()
        for event in events:
            if isinstance(event, ToolCall):
                self.calls.append(event)
            else:
                self.text.append(event)
        if piece.finish is not None:
            calls = self.calls and piece.finish == "stop"
            self.finish = "tool_calls" if calls else piece.finish
        return events


class Completion:
    """Converts the pieces of one request to OpenAI chat completion documents.

    Token ids are in the same fields as vLLM's: ``prompt_token_ids`` at the top level, for a stream
    in the first chunk, and ``token_ids`` in every choice.
    """

    def __init__(
        self,
        request: CompletionRequest,
        *,
        model: str,
        policy: str,
        generation: Generation,
        vocabulary: Vocabulary,
    ) -> None:
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self._request = request
        self._generation = generation
        self._prompt = list(generation.prompt)
        self._vocabulary = vocabulary
        self._created = int(time.time())
        self._model = model
        self._policy = policy
        self._prompt_sent = False
        self._choices = [self._choice(index) for index in range(request.n)]

    def _choice(self, index: int) -> _Choice:
        request = self._request
        parser = ToolCallParser(response_id=self.id, choice=index) if request.uses_tools else None
        return _Choice(Detokenizer(self._vocabulary), StopText(request.stops), parser)

    @property
    def done(self) -> bool:
        return all(choice.finish is not None for choice in self._choices)

    def add(self, piece: Piece) -> dict[str, Any]:
        """Add a piece and return the stream chunk for it."""
        choice = self._choices[piece.choice]
        events = choice.read(piece)
        logprobs = self._logprobs(piece)
        choice.tokens += piece.tokens
        choice.logprobs += logprobs
        part: dict[str, Any] = {
            "index": piece.choice,
            "delta": self._delta(choice, events),
            "logprobs": {"content": logprobs} if self._request.logprobs else None,
            "finish_reason": choice.finish,
        }
        if self._request.return_token_ids:
            part["token_ids"] = piece.tokens
        chunk = self._document("chat.completion.chunk", choices=[part])
        if self._request.return_token_ids and not self._prompt_sent:
            chunk["prompt_token_ids"] = self._prompt
        self._prompt_sent = True
        return chunk

    def usage_chunk(self) -> dict[str, Any] | None:
        """Return the chunk with usage numbers, if the request asked for it."""
        if not self._request.stream_options.include_usage:
            return None
        return self._document("chat.completion.chunk", choices=[], usage=self._usage())

    def document(self) -> dict[str, Any]:
        """Return the complete document; valid when `done`."""
        choices = [self._whole(index, choice) for index, choice in enumerate(self._choices)]
        document = self._document("chat.completion", choices=choices, usage=self._usage())
        if self._request.return_token_ids:
            document["prompt_token_ids"] = self._prompt
        return document

    def _delta(self, choice: _Choice, events: Sequence[ParsedPart]) -> dict[str, Any]:
        delta: dict[str, Any] = {} if choice.begun else {"role": "assistant", "content": ""}
        choice.begun = True
        if text := "".join(event for event in events if isinstance(event, str)):
            delta["content"] = text
        if calls := [_call(event, event.index) for event in events if isinstance(event, ToolCall)]:
            delta["tool_calls"] = calls
        return delta

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        text = "".join(choice.text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not choice.calls else None,
            "refusal": None,
        }
        if choice.calls:
            message["tool_calls"] = [_call(call, None) for call in choice.calls]
        whole: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": {"content": choice.logprobs} if self._request.logprobs else None,
            "finish_reason": choice.finish,
        }
        if self._request.return_token_ids:
            whole["token_ids"] = choice.tokens
        return whole

    def _document(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": f"{self._policy}@{self._generation.version}",
            **fields,
        }

    def _usage(self) -> dict[str, int]:
        sampled = sum(len(choice.tokens) for choice in self._choices)
        return {
            "prompt_tokens": len(self._prompt),
            "completion_tokens": sampled,
            "total_tokens": len(self._prompt) + sampled,
        }

    def _logprobs(self, piece: Piece) -> list[dict[str, Any]]:
        if not self._request.logprobs:
            return []
        return [
            {**self._entry(token, logprob), "top_logprobs": [self._entry(*pair) for pair in top]}
            for token, logprob, top in zip(piece.tokens, piece.logprobs, piece.tops, strict=True)
        ]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._vocabulary.token(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _call(call: ToolCall, index: int | None) -> dict[str, Any]:
    position = {} if index is None else {"index": index}
    return {
        **position,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def error_document(message: str, *, param: str | None, code: str | None) -> dict[str, Any]:
    """Return the body of an error reply."""
    return {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": param,
            "code": code,
        }
    }
