"""A backend that answers chat completions with samples of the model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import uuid4

from agl_testing.toy_model import END, ToyModel, decode, encode

from agl_core.errors import EngineError
from agl_core.interfaces import Backend, Counted

CONTEXT = 1024
"""Most tokens of a prompt with its answer."""


@dataclass(slots=True)
class _Sampled:
    """One choice."""

    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    finish: str = "length"


class _Reply:
    """An answer; closing it ends `body`."""

    def __init__(self, status: int, chunks: AsyncGenerator[bytes], *, stream: bool = False) -> None:
        self.status = status
        kind = "text/event-stream" if stream else "application/json"
        self.headers: Mapping[str, str] = {"content-type": kind}
        self._chunks = chunks

    def body(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def close(self) -> None:
        await self._chunks.aclose()


class TemplateBackend(Backend):
    """The endpoint of one policy."""

    def __init__(self, model: ToyModel, *, max_tokens: int) -> None:
        self.under_way = 0
        """Number of requests being answered."""
        self._model = model
        self._max_tokens = max_tokens

    async def chat(
        self,
        body: bytes,
        *,
        headers: Mapping[str, str],  # noqa: ARG002 (nothing in this process reads them)
        timeout_s: float,
    ) -> _Reply:
        """Answer a request.

        Raises:
            EngineError: generation took longer than `timeout_s`.
        """
        ends_at = asyncio.get_running_loop().time() + timeout_s
        request = json.loads(body)
        problem, prompt = self._prompt(request)
        if problem:
            return _Reply(400, _whole({"error": {"message": problem}}))
        if request.get("stream"):
            return _Reply(200, self._stream(request, prompt, ends_at), stream=True)
        count = request.get("n") or 1
        choices = [await self._sampled(request, index, ends_at) for index in range(count)]
        rows = [_row(request, index, choice, "message") for index, choice in enumerate(choices)]
        document = _document(request, "chat.completion", rows, prompt, _new_id())
        document["usage"] = _usage(prompt, sum(len(choice.tokens) for choice in choices))
        return _Reply(200, _whole(document))

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return decode(token_ids)

    async def context_length(self) -> int:
        return CONTEXT

    async def count_tokens(self, body: bytes) -> Counted:
        problem, prompt = self._prompt(json.loads(body))
        if problem:
            raise ValueError(problem)
        return Counted(len(prompt), CONTEXT)

    def _prompt(self, request: Any) -> tuple[str, list[int]]:
        """Return an error for messages that the model cannot read, and the ids of the prompt."""
        texts: list[str] = []
        for message in request["messages"]:
            if not isinstance(message.get("content"), str):
                return "messages: this engine takes text only", []
            texts.append(f"{message['role']}: {message['content']} ")
        prompt = encode("".join(texts))
        if len(prompt) >= CONTEXT:
            return f"messages: {len(prompt)} tokens do not fit into a context of {CONTEXT}", []
        return "", prompt

    async def _sampled(self, request: Any, index: int, ends_at: float) -> _Sampled:
        choice = _Sampled()
        async for token, logprob in self._tokens(request, index, ends_at):
            choice.tokens.append(token)
            choice.logprobs.append(logprob)
        choice.finish = "stop" if END in choice.tokens else "length"
        return choice

    async def _tokens(
        self, request: Any, index: int, ends_at: float
    ) -> AsyncGenerator[tuple[int, float]]:
        """Yield the tokens of one answer; other tasks run between them."""
        given = request.get("temperature")
        temperature = 1.0 if given is None else given
        seed = request.get("seed")
        # The choices of one request must differ, although they have one seed.
        random = Random(None if seed is None else f"{seed}/{index}")  # noqa: S311 (nothing is secret)
        self.under_way += 1
        try:
            for _ in range(request.get("max_tokens") or self._max_tokens):
                await asyncio.sleep(0)
                if asyncio.get_running_loop().time() > ends_at:
                    raise EngineError("Generation took longer than the request's time limit")
                token, logprob = self._model.sample(temperature, random)
                yield token, logprob
                if token == END:
                    return
        finally:
            self.under_way -= 1

    async def _stream(
        self, request: Any, prompt: list[int], ends_at: float
    ) -> AsyncGenerator[bytes]:
        """Yield one event per token, one at the end of each choice, and the usage if requested."""
        shown: list[int] | None = prompt
        count, answer_id = 0, _new_id()
        for index in range(request.get("n") or 1):
            last = 0
            tokens = self._tokens(request, index, ends_at)
            try:
                async for last, logprob in tokens:
                    row = _row(request, index, _Sampled([last], [logprob]), "delta")
                    yield _event(
                        _document(request, "chat.completion.chunk", [row], shown, answer_id)
                    )
                    shown = None
                    count += 1
            finally:
                await tokens.aclose()
            row = _row(request, index, _Sampled(), "delta")
            row["finish_reason"] = "stop" if last == END else "length"
            yield _event(_document(request, "chat.completion.chunk", [row], shown, answer_id))
        if (request.get("stream_options") or {}).get("include_usage"):
            document = _document(request, "chat.completion.chunk", [], None, answer_id)
            yield _event({**document, "usage": _usage(prompt, count)})
        yield b"data: [DONE]\n\n"


async def _whole(document: Mapping[str, Any]) -> AsyncGenerator[bytes]:
    yield json.dumps(document).encode()


def _usage(prompt: list[int], count: int) -> dict[str, int]:
    """Return the tokens of the prompt and of all choices; the gateway checks the ids with them."""
    total = len(prompt) + count
    return {"prompt_tokens": len(prompt), "completion_tokens": count, "total_tokens": total}


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _new_id() -> str:
    return f"chatcmpl-{uuid4().hex}"


def _document(
    request: Any, kind: str, rows: list[dict[str, Any]], prompt: list[int] | None, answer_id: str
) -> dict[str, Any]:
    document = {
        "id": answer_id,
        "object": kind,
        "created": 0,
        "model": request["model"],
        "choices": rows,
    }
    if request.get("return_token_ids") and prompt is not None:
        document["prompt_token_ids"] = prompt
    return document


def _row(request: Any, index: int, choice: _Sampled, key: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "index": index,
        key: {"role": "assistant", "content": decode(choice.tokens)},
        "finish_reason": choice.finish if key == "message" else None,
    }
    if request.get("logprobs"):
        pairs = zip(choice.tokens, choice.logprobs, strict=True)
        row["logprobs"] = {
            "content": [
                {"token": decode([token]), "logprob": logprob, "bytes": None, "top_logprobs": []}
                for token, logprob in pairs
            ]
        }
    if request.get("return_token_ids"):
        row["token_ids"] = choice.tokens
    return row
