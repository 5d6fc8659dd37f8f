"""A policy as an OpenAI chat completions backend in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agl_core.errors import EngineError
from agl_core.interfaces import Backend, Counted, Scored
from agl_torch.chat.request import CompletionRequest, RequestError, parse_request
from agl_torch.chat.response import Completion, error_document
from agl_torch.chat.template import ChatTemplate, RenderError
from agl_torch.chat.text import Vocabulary
from agl_torch.serving.sequence import Generation, Piece
from agl_torch.serving.worker import Worker

_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The data of a policy that its backend uses."""

    policy: str
    template: ChatTemplate
    vocabulary: Vocabulary
    max_model_len: int
    max_new_tokens: int


class DocumentReply:
    """A reply with a complete JSON document: a completion or an error."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        self.status = status
        self.headers: Mapping[str, str] = _JSON
        self._content = msgspec.json.encode(document)

    async def body(self) -> AsyncIterator[bytes]:
        yield self._content

    async def close(self) -> None:
        """Do nothing: the generation has ended."""


class StreamReply:
    """A running generation as server-sent events."""

    status = 200
    headers: Mapping[str, str] = _EVENTS

    def __init__(self, generation: Generation, completion: Completion, *, deadline: float) -> None:
        self._generation = generation
        self._completion = completion
        self._deadline = deadline

    async def body(self) -> AsyncIterator[bytes]:
        """Yield events as tokens are sampled.

        Raises:
            EngineError: generation failed or timed out; its slots are freed.
        """
        try:
            while not self._completion.done:
                pieces = await _pieces(self._generation, deadline=self._deadline)
                yield b"".join(_event(self._completion.add(piece)) for piece in pieces)
            usage = self._completion.usage_chunk()
            yield (_event(usage) if usage is not None else b"") + b"data: [DONE]\n\n"
        finally:
            self._generation.cancelled = True

    async def close(self) -> None:
        """Cancel the generation; its slots are freed before the next token."""
        self._generation.cancelled = True


ScoreIds = Callable[[Sequence[int], Sequence[int], float], Scored]
"""Returns the log-probabilities of an answer after a prompt, at a temperature."""


class TorchBackend(Backend):
    """Backend of one policy; the worker's thread generates the answers."""

    def __init__(
        self, endpoint: Endpoint, worker: Worker[Any], score: ScoreIds | None = None
    ) -> None:
        """Serve a policy.

        Args:
            score: Computes log-probabilities, on the worker's thread; None if nothing can.
        """
        self._endpoint = endpoint
        self._worker = worker
        self._score = score

    async def chat(
        self,
        body: bytes,
        *,
        headers: Mapping[str, str],  # noqa: ARG002 (unused in process)
        timeout_s: float,
    ) -> DocumentReply | StreamReply:
        """Answer a request body.

        Raises:
            EngineError: generation failed or took longer than `timeout_s`.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            document = msgspec.json.decode(body)
            request = parse_request(document)
            prompt = await self._prompt(request)
        except msgspec.DecodeError as error:
            return _refusal(f"The request body is no JSON: {error}")
        except RequestError as error:
            return _refusal(str(error), param=error.param, code=error.code)
        generation = self._generation(request, prompt)
        completion = Completion(
            request,
            model=str(document.get("model") or self._endpoint.policy),
            policy=self._endpoint.policy,
            generation=generation,
            vocabulary=self._endpoint.vocabulary,
        )
        self._worker.submit(self._endpoint.policy, generation)
        if request.stream:
            return StreamReply(generation, completion, deadline=deadline)
        try:
            while not completion.done:
                for piece in await _pieces(generation, deadline=deadline):
                    completion.add(piece)
        finally:
            generation.cancelled = True
        return DocumentReply(200, completion.document())

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of the ids without control tokens."""
        return self._endpoint.vocabulary.decode(token_ids)

    async def score(
        self, prompt: Sequence[int], answer: Sequence[int], *, temperature: float
    ) -> Scored | None:
        """Return the log-probabilities of an answer's ids with the weights that serve now.

        None if the engine cannot compute them.

        Raises:
            ValueError: prompt and answer do not fit into the model's context.
            EngineError: the engine has stopped.
        """
        score = self._score
        if score is None:
            return None
        length, limit = len(prompt) + len(answer), self._endpoint.max_model_len
        if length > limit:
            raise ValueError(
                f"prompt and answer have {length} tokens, but the model's context holds {limit}"
            )
        return await self._worker.run(lambda: score(prompt, answer, temperature))

    async def count_tokens(self, body: bytes) -> Counted:
        """Return the length of a chat request's prompt.

        Raises:
            ValueError: the body is not a valid request, or the chat template rejects its messages.
        """
        try:
            request = parse_request(msgspec.json.decode(body))
        except msgspec.DecodeError as error:
            raise ValueError(f"The request body is no JSON: {error}") from error
        return Counted(len(await self._encoded(request)), self._endpoint.max_model_len)

    async def context_length(self) -> int:
        """Return the maximum number of tokens of a prompt with its answer."""
        return self._endpoint.max_model_len

    async def _encoded(self, request: CompletionRequest) -> tuple[int, ...]:
        """Return the token ids of the prompt.

        Raises:
            RequestError: the chat template cannot render the messages.
        """
        tools = request.tools if request.uses_tools else ()
        template, raw = self._endpoint.template, request.raw_prompt
        try:
            if raw is not None:
                return template.encode_raw(raw, special_tokens=request.add_special_tokens)
            return template.encode(
                request.messages, tools=tools, options=request.chat_template_kwargs
            )
        except RenderError as error:
            raise RequestError(str(error), param="messages") from error

    async def _prompt(self, request: CompletionRequest) -> tuple[int, ...]:
        prompt = await self._encoded(request)
        limit = self._endpoint.max_model_len
        if len(prompt) >= limit:
            raise RequestError(
                f"The messages are {len(prompt)} tokens long, which leaves no room for an answer: "
                f"the model's context holds {limit} tokens",
                param="messages",
                code="context_length_exceeded",
            )
        return prompt

    def _generation(self, request: CompletionRequest, prompt: tuple[int, ...]) -> Generation:
        left = self._endpoint.max_model_len - len(prompt)
        return Generation(
            prompt=prompt,
            sampling=request.sampling(left=left, default=self._endpoint.max_new_tokens),
            n=request.n,
            stream=request.stream,
            stops=self._endpoint.vocabulary.stopper(request.ends),
            loop=asyncio.get_running_loop(),
            pieces=asyncio.Queue(),
        )


async def _pieces(generation: Generation, *, deadline: float) -> list[Piece]:
    """Wait for a piece and return it with all others in the queue."""
    remaining = deadline - generation.loop.time()
    try:
        first = await asyncio.wait_for(generation.pieces.get(), timeout=max(remaining, 0.0))
    except TimeoutError as error:
        generation.cancelled = True
        raise EngineError("Generation took longer than the request's time limit") from error
    results = [first]
    while not generation.pieces.empty():
        results.append(generation.pieces.get_nowait())
    pieces: list[Piece] = []
    for result in results:
        if isinstance(result, EngineError):
            raise result
        pieces.append(result)
    return pieces


def _refusal(message: str, *, param: str | None = None, code: str | None = None) -> DocumentReply:
    return DocumentReply(400, error_document(message, param=param, code=code))


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"
