"""A loopback server for OpenAI chat completions with vLLM's extra fields, and a log of the truth.

It also serves the dialects of installed plugins and logs the resulting chat completions.

::

    async with FakeOpenAI(lambda body: "hello") as server:
        ...                                   # send requests to server.base_url
        assert server.log[0].choices[0].text == "hello"

    with FakeOpenAI() as server: ...          # the same in a separate thread
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, final

from aiohttp import web

from agl_core.interfaces import DialectAnswer, Problem
from agl_testing import _fake_answers as answers
from agl_testing import _installed as dialects
from agl_testing._fake_answers import Answered, AnsweredChoice, FakeReply, Script
from agl_testing.vocabulary import decode

__all__ = ["Answered", "AnsweredChoice", "FakeOpenAI", "FakeOptions", "FakeReply"]

BeforeSend = Callable[[Answered, int], Awaitable[None]]
"""Awaited before each piece of an answer is sent, with its number; 0 is before the first byte.

Raising ConnectionError breaks the connection at this point.
"""
Cut = Callable[[bytes], Iterable[bytes]]
"""Splits a whole event stream into the pieces to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOptions:
    """Abilities and faults of the server."""

    token_ids: bool = True
    """Honour ``return_token_ids`` in plain answers."""
    stream_token_ids: bool = True
    logprobs: bool = True
    logprobs_mode: str = "processed"
    """Whether ``top_logprobs`` are after temperature (``processed``) or before (``raw``)."""
    strict: bool = False
    """Refuse ``return_token_ids`` with 400, as servers do that reject unknown fields."""
    stable: bool = False
    """One spelling per text, so that a conversation's prompts extend each other token by token."""
    max_model_len: int = 1_000_000
    """Longer prompts are refused with 400."""
    overflow_code: str | int = "context_length_exceeded"
    """``code`` of that refusal; vLLM sends 400, so that only the message states the cause."""
    api_key: str | None = None
    """Bearer token that requests must have."""
    models: tuple[str, ...] = ("fake-model",)
    detokenize: bool = False
    """Serve vLLM's ``/detokenize``, which decodes token ids."""
    tokenize: bool = False
    """Serve vLLM's ``/tokenize``, which returns a prompt's length; exact with `stable`."""


@final
class FakeOpenAI:
    """Serves ``/v1/chat/completions``, dialects and ``/v1/models``; `log` records the answers."""

    def __init__(self, script: Script | None = None, options: FakeOptions | None = None) -> None:
        """Create a server; it listens once entered.

        Args:
            script: Returns the reply of every choice; the last message is echoed when None.
            options: Abilities and faults.
        """
        self.script: Script = script or _echo
        self.options = options or FakeOptions()
        self.log: list[Answered] = []
        """Requests that reached the model, in order of arrival."""
        self.refused: list[Answered] = []
        """Requests answered with an error status."""
        self.before_send: BeforeSend | None = None
        self.cut: Cut | None = None
        self.tamper: Callable[[dict[str, Any]], None] | None = None
        """Changes each JSON body or chunk in place before it is sent."""
        self.in_flight = 0
        self.base_url = ""
        self._failures: list[tuple[int, dict[str, Any]]] = []
        self._random = Random(0)  # noqa: S311
        self._changed = threading.Condition()
        self._runner: web.AppRunner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def fail(self, times: int, *, status: int = 500, body: dict[str, Any] | None = None) -> None:
        """Answer the next `times` requests with an error."""
        error = body or {"error": {"message": "out of order", "type": "server_error", "code": None}}
        self._failures += [(status, error)] * times

    def wait(self, count: int, *, timeout_s: float = 60.0) -> list[Answered]:
        """Block until `count` answers have ended, in full or early, and return the log.

        Raises:
            TimeoutError: they did not end in time.
        """

        def ended() -> bool:
            return sum(answer.done for answer in self.log) >= count

        with self._changed:
            if not self._changed.wait_for(ended, timeout=timeout_s):
                raise TimeoutError(f"{count} answers expected, the log holds {self.log}")
        return self.log

    async def ended(self, count: int, *, timeout_s: float = 60.0) -> list[Answered]:
        """Wait like `wait`, without blocking the loop."""
        return await asyncio.to_thread(self.wait, count, timeout_s=timeout_s)

    async def __aenter__(self) -> FakeOpenAI:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        if self.options.detokenize:
            app.router.add_post("/detokenize", self._detokenize)
        if self.options.tokenize:
            app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_post("/v1{path:/.*}", self._translated)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.base_url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def __enter__(self) -> FakeOpenAI:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-openai")
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.__aenter__(), self._loop).result()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self.__aexit__(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _models(self, request: web.Request) -> web.Response:
        del request
        rows = [
            {"id": name, "object": "model", "max_model_len": self.options.max_model_len}
            for name in self.options.models
        ]
        return web.json_response({"object": "list", "data": rows})

    async def _detokenize(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        return web.json_response({"prompt": decode(body["tokens"])})

    async def _tokenize(self, request: web.Request) -> web.Response:
        ids = answers.prompt_ids(await request.json(), random=self._spelling())
        return web.json_response({"count": len(ids), "max_model_len": self.options.max_model_len})

    async def _embeddings(self, request: web.Request) -> web.Response:
        """Answer with one number per text: its length."""
        asked = await request.json()
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        rows = [
            {"object": "embedding", "index": index, "embedding": [float(len(text))]}
            for index, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        return web.json_response(
            {"object": "list", "model": asked["model"], "data": rows, "usage": usage}
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, await request.json())

    async def _translated(self, request: web.Request) -> web.StreamResponse:
        # Loading plugins imports their modules, which would block the server's loop.
        installed = await asyncio.to_thread(dialects.installed_dialects)
        dialect = installed.get(f"POST {request.match_info['path']}")
        if dialect is None:
            raise web.HTTPNotFound
        try:
            chat, answer = dialect(await request.read())
        except Problem as problem:
            return web.Response(
                status=problem.status, body=problem.body(), content_type="application/json"
            )
        return await self._answer(request, json.loads(chat), answer)

    async def _answer(
        self, request: web.Request, body: dict[str, Any], said: DialectAnswer | None = None
    ) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        answer = Answered(
            id=f"chatcmpl-{self._random.getrandbits(64):016x}", body=body, headers=headers
        )
        refusal = self._refusal(answer)
        if refusal is not None:
            answer.status = refusal[0]
            self.refused.append(answer)
            return web.json_response(refusal[1], status=refusal[0])
        self._sample(answer)
        self.log.append(answer)
        self.in_flight += 1
        answer.closed_early = True
        try:
            send = self._stream if answer.streamed else self._plain
            response = await send(request, answer, said)
            answer.closed_early = False
        except ConnectionError:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=499)
        else:
            return response
        finally:
            self.in_flight -= 1
            with self._changed:
                answer.done = True
                self._changed.notify_all()

    def _refusal(self, answer: Answered) -> tuple[int, dict[str, Any]] | None:
        key = self.options.api_key
        if key is not None and answer.headers.get("authorization") != f"Bearer {key}":
            return 401, _error("wrong API key", "invalid_api_key")
        if self._failures:
            return self._failures.pop(0)
        if self.options.strict and "return_token_ids" in answer.body:
            return 400, _error("unknown field return_token_ids", "unknown_parameter")
        answer.prompt_token_ids = answers.prompt_ids(answer.body, random=self._spelling())
        length, limit = len(answer.prompt_token_ids), self.options.max_model_len
        if length >= limit:
            text = f"This model's maximum context length is {limit} tokens, got {length}"
            return 400, _error(text, self.options.overflow_code)
        return None

    def _spelling(self) -> Random | None:
        return None if self.options.stable else self._random

    def _sample(self, answer: Answered) -> None:
        body = answer.body
        answer.streamed = bool(body.get("stream"))
        for index in range(body.get("n") or 1):
            choice = answers.sample(
                self.script(body),
                index=index,
                random=self._random,
                stable=self.options.stable,
                max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
            )
            answer.choices.append(choice)

    def _alternatives(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        count = body.get("top_logprobs") or 0
        logits = [-1.0 - 0.7 * rank for rank in range(count)]
        if self.options.logprobs_mode == "processed":
            logits = [logit / (body.get("temperature", 1.0) or 1.0) for logit in logits]
        return [{"token": f"c{k}", "logprob": v, "bytes": None} for k, v in enumerate(logits)]

    def _extras(self, answer: Answered, choice: AnsweredChoice, *, ids: bool) -> dict[str, Any]:
        extras: dict[str, Any] = {"logprobs": None}
        if self.options.logprobs and answer.body.get("logprobs"):
            alternatives = self._alternatives(answer.body)
            extras["logprobs"] = answers.logprob_entries(choice, alternatives)
        if ids and answer.body.get("return_token_ids"):
            extras["token_ids"] = choice.token_ids
        return extras

    def _envelope(self, answer: Answered, kind: str) -> dict[str, Any]:
        model = answer.body.get("model")
        return {"id": answer.id, "object": kind, "created": 1, "model": model}

    async def _plain(
        self, request: web.Request, answer: Answered, said: DialectAnswer | None
    ) -> web.StreamResponse:
        if self.before_send is not None:
            await self.before_send(answer, 0)
        ids = self.options.token_ids
        payload = self._envelope(answer, "chat.completion")
        payload["choices"] = [
            {
                "index": choice.index,
                "message": answers.message(choice),
                "finish_reason": choice.finish_reason,
                **self._extras(answer, choice, ids=ids),
            }
            for choice in answer.choices
        ]
        payload["usage"] = answer.usage
        if ids and answer.body.get("return_token_ids"):
            payload["prompt_token_ids"] = answer.prompt_token_ids
        if self.tamper is not None:
            self.tamper(payload)
        body = json.dumps(payload).encode() if said is None else dialects.whole(said, payload)
        response = web.Response(body=body, content_type="application/json", charset="utf-8")
        await response.prepare(request)
        await response.write_eof()
        return response

    def _chunks(self, answer: Answered) -> Iterable[dict[str, Any]]:
        ids = self.options.stream_token_ids and bool(answer.body.get("return_token_ids"))
        options: dict[str, Any] = answer.body.get("stream_options") or {}
        usage = bool(options.get("include_usage"))
        base = self._envelope(answer, "chat.completion.chunk")
        if usage:
            base["usage"] = None
        first = True
        for choice in answer.choices:
            head = {"index": choice.index, "delta": {"role": "assistant", "content": ""}}
            chunk = {**base, "choices": [{**head, "logprobs": None, "finish_reason": None}]}
            yield {**chunk, "prompt_token_ids": answer.prompt_token_ids} if first and ids else chunk
            first = False
        for choice in answer.choices:
            extras = self._extras(answer, choice, ids=ids)
            for piece in answers.deltas(choice):
                yield {**base, "choices": [_chunk_choice(choice, piece, extras)]}
        if usage:
            yield {**base, "choices": [], "usage": answer.usage}

    def _tampered(self, answer: Answered) -> Iterable[dict[str, Any]]:
        for chunk in self._chunks(answer):
            if self.tamper is not None:
                self.tamper(chunk)
            yield chunk

    async def _stream(
        self, request: web.Request, answer: Answered, said: DialectAnswer | None
    ) -> web.StreamResponse:
        if self.before_send is not None:
            await self.before_send(answer, 0)
        chunks = self._tampered(answer)
        if said is None:
            events = [_event(chunk) for chunk in chunks] + [b"data: [DONE]\n\n"]
        else:
            events = list(dialects.streamed(said, chunks))
        pieces = events if self.cut is None else self.cut(b"".join(events))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for position, piece in enumerate(pieces):
            if self.before_send is not None and position:
                await self.before_send(answer, position)
            await response.write(piece)
        await response.write_eof()
        return response


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"


def _chunk_choice(
    choice: AnsweredChoice, piece: answers.Delta, extras: dict[str, Any]
) -> dict[str, Any]:
    at = slice(piece.position, piece.position + 1)
    row: dict[str, Any] = {
        "index": choice.index,
        "delta": piece.delta,
        "logprobs": None,
        "finish_reason": choice.finish_reason if piece.last else None,
    }
    if extras["logprobs"] is not None:
        row["logprobs"] = {"content": extras["logprobs"]["content"][at]}
    if "token_ids" in extras:
        row["token_ids"] = extras["token_ids"][at]
    return row


def _echo(body: dict[str, Any]) -> str:
    content = body["messages"][-1].get("content")
    return content if isinstance(content, str) else json.dumps(content)


def _error(message: str, code: str | int) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}
