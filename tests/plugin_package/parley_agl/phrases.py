"""The engine ``phrases``: policies that say words of a list, served and trained in this process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agl_core.config import EngineOptions
from agl_core.errors import ConfigError, EngineError
from agl_core.interfaces import AlgorithmSetup, Backend, Engine
from agl_core.types import Batch, Policy, Update

FIRST_WORD = 256
"""Ids below it are the bytes of prompts; the list's words follow, and after them the end."""
WEIGHTS = "logits.json"


class PhrasesOptions(EngineOptions):
    """Options of `PhrasesEngine`."""

    words: tuple[str, ...] = ("yes", "no", "maybe")
    """Words of the policies' answers."""
    max_words: int = Field(default=8, ge=1)
    """Longest answer of a request that names no limit."""


class LossOptions(BaseModel):
    """Options of `PolicyGradient`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    clip_low: float = 0.2
    """No gradient where the ratio of new to old probability is below ``1 - clip_low``."""
    clip_high: float = 0.2
    """The same above ``1 + clip_high``."""
    ratio: str = "token"
    """``token``: one ratio for each sampled word."""


class PolicyGradient:
    """The clipped policy gradient."""

    def __init__(self, options: LossOptions) -> None:
        if options.ratio != "token":
            raise ConfigError(f"Engine 'phrases' has no ratio {options.ratio!r}: use 'token'")
        self._options = options

    def slope(self, advantage: float, ratio: float) -> float:
        """Return the derivative of the loss by the log-probability of a sampled word."""
        low, high = 1 - self._options.clip_low, 1 + self._options.clip_high
        clipped = ratio > high if advantage > 0 else ratio < low
        return 0.0 if clipped else ratio * advantage


class Phrases:
    """One softmax for the first word of an answer, and one for every later word and the end."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.logits = [[0.0] * (len(words) + 1) for _ in range(2)]

    def logprobs(self, last: int, temperature: float = 1.0) -> list[float]:
        """Return the log-probabilities of the ids after `last`."""
        scaled = [logit / temperature for logit in self.logits[last >= FIRST_WORD]]
        total = math.log(sum(map(math.exp, scaled)))
        return [value - total for value in scaled]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids; the end has none."""
        prompt = bytes(token for token in ids if token < FIRST_WORD).decode(errors="replace")
        said = [token - FIRST_WORD for token in ids if token >= FIRST_WORD]
        return prompt + "".join(f" {self.words[word]}" for word in said if word < len(self.words))

    def train(self, batch: Batch, loss: PolicyGradient, *, lr: float) -> None:
        """Do one step along the weighted policy gradient."""
        total = sum(batch.weights) or 1.0
        change = [[0.0] * len(row) for row in self.logits]
        for index, target in enumerate(batch.targets):
            last = batch.tokens[batch.nodes[index]]
            now = self.logprobs(last)
            ratio = math.exp(now[target - FIRST_WORD] - batch.logprobs[index])
            share = batch.weights[index] * loss.slope(batch.advantages[index], ratio) / total
            for word, logprob in enumerate(now):
                hit = word == target - FIRST_WORD
                change[last >= FIRST_WORD][word] += share * (hit - math.exp(logprob))
        for row, slopes in zip(self.logits, change, strict=True):
            row[:] = [logit + lr * slope for logit, slope in zip(row, slopes, strict=True)]


class _Reply:
    def __init__(self, status: int, chunks: AsyncGenerator[bytes], kind: str) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {"content-type": kind}
        self._chunks = chunks

    def body(self) -> AsyncGenerator[bytes]:
        return self._chunks

    async def close(self) -> None:
        await self._chunks.aclose()


class PhrasesBackend(Backend):
    """Answers the calls of one policy."""

    def __init__(self, model: Phrases, options: PhrasesOptions) -> None:
        self.under_way = 0
        self._model = model
        self._options = options

    async def chat(self, body: bytes, *, headers: Mapping[str, str], timeout_s: float) -> _Reply:
        ends_at = asyncio.get_running_loop().time() + timeout_s
        request = json.loads(body)
        contents = [message.get("content") or "" for message in request["messages"]]
        if not all(isinstance(content, str) for content in contents):
            refusal = {"error": {"message": "messages: engine 'phrases' takes text only"}}
            return _Reply(400, _once(refusal), "application/json")
        prompt = list("\n".join(contents).encode())
        if request.get("stream"):
            return _Reply(200, self._stream(request, prompt, ends_at), "text/event-stream")
        choices: list[dict[str, Any]] = []
        count = 0
        for index in range(request.get("n") or 1):
            pairs = [pair async for pair in self._said(request, index, ends_at)]
            choices.append(self._choice(request, index, pairs, "message"))
            count += len(pairs)
        answer = _answer(request, _new_id(), choices, prompt) | {"usage": _usage(prompt, count)}
        return _Reply(200, _once(answer), "application/json")

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._model.text(token_ids)

    async def _said(
        self, request: Any, index: int, ends_at: float
    ) -> AsyncGenerator[tuple[int, float]]:
        """Return ids with their log-probabilities, up to the end or the limit."""
        temperature = 1.0 if request.get("temperature") is None else request["temperature"]
        seed = request.get("seed")
        random = Random(None if seed is None else f"{seed}/{index}")
        last, loop = 0, asyncio.get_running_loop()
        self.under_way += 1
        try:
            for _ in range(request.get("max_tokens") or self._options.max_words):
                await asyncio.sleep(0)
                if loop.time() > ends_at:
                    raise EngineError("The answer took longer than the request's time limit")
                known = self._model.logprobs(last, temperature or 1.0)
                places = range(len(known))
                word = max(places, key=known.__getitem__)
                if temperature:
                    word = random.choices(places, [math.exp(value) for value in known])[0]
                last = FIRST_WORD + word
                yield last, known[word]
                if word == len(self._model.words):
                    return
        finally:
            self.under_way -= 1

    async def _stream(
        self, request: Any, prompt: list[int], ends_at: float
    ) -> AsyncGenerator[bytes]:
        name, shown, count = _new_id(), prompt, 0
        for index in range(request.get("n") or 1):
            said, pair = self._said(request, index, ends_at), (0, 0.0)
            try:
                async for pair in said:
                    choice = self._choice(request, index, [pair], "delta")
                    yield _event(_answer(request, name, [choice], shown))
                    shown, count = [], count + 1
            finally:
                await said.aclose()
            ending = self._choice(request, index, [], "delta")
            ending["finish_reason"] = self._finish(pair[0])
            yield _event(_answer(request, name, [ending], []))
        if (request.get("stream_options") or {}).get("include_usage"):
            yield _event(_answer(request, name, [], []) | {"usage": _usage(prompt, count)})
        yield b"data: [DONE]\n\n"

    def _finish(self, last: int) -> str:
        return "stop" if last == FIRST_WORD + len(self._model.words) else "length"

    def _choice(
        self, request: Any, index: int, pairs: Sequence[tuple[int, float]], key: str
    ) -> dict[str, Any]:
        ids = [token for token, _ in pairs]
        finish = self._finish(ids[-1]) if ids and key == "message" else None
        choice: dict[str, Any] = {"index": index, "finish_reason": finish}
        choice[key] = {"role": "assistant", "content": self._model.text(ids)}
        if request.get("logprobs"):
            content = [
                {"token": self._model.text([token]), "logprob": logprob, "top_logprobs": []}
                for token, logprob in pairs
            ]
            choice["logprobs"] = {"content": content}
        if request.get("return_token_ids"):
            choice["token_ids"] = ids
        return choice


class PhrasesEngine(Engine):
    """One `Phrases` for each policy; a policy's model is a directory that was saved, or a name."""

    trains = True

    def __init__(self, options: PhrasesOptions, setup: AlgorithmSetup | None) -> None:
        self._options = options
        self._setup = setup
        self._loss: PolicyGradient | None = None if setup is None else setup.loss_factory()
        self._models: dict[str, Phrases] = {}
        self._backends: dict[str, PhrasesBackend] = {}
        self._versions: dict[str, int] = {}

    async def start(self, policies: Sequence[Policy]) -> None:
        for policy in policies:
            self._models[policy.name] = model = Phrases(self._options.words)
            if (Path(policy.model) / WEIGHTS).is_file():
                await self.load(policy.name, policy.model, version=policy.version)
            self._backends[policy.name] = PhrasesBackend(model, self._options)
            self._versions[policy.name] = policy.version

    async def stop(self) -> None:
        self._backends.clear()

    def backend(self, policy: str) -> PhrasesBackend:
        return self._backends[policy]

    async def update(self, batch: Batch) -> Update:
        if self._setup is None or self._loss is None:
            raise ConfigError("Engine 'phrases' was made to serve only: give it an algorithm")
        self._models[batch.policy].train(batch, self._loss, lr=self._setup.lr)
        self._versions[batch.policy] += 1
        return Update(policy=batch.policy, step=batch.step, version=self._versions[batch.policy])

    async def save(self, policy: str, directory: str, *, resumable: bool = True) -> None:
        await asyncio.to_thread(_write, Path(directory), self._models[policy].logits)

    async def load(self, policy: str, directory: str, *, version: int) -> None:
        file = Path(directory) / WEIGHTS
        if not file.is_file():
            raise ConfigError(f"There are no weights at {file}: name a directory that was saved")
        self._models[policy].logits[:] = json.loads(file.read_text(encoding="utf-8"))
        self._versions[policy] = version

    async def fingerprint(self, policy: str) -> str:
        return hashlib.sha256(json.dumps(self._models[policy].logits).encode()).hexdigest()

    def vocab_size(self, policy: str) -> int:
        return FIRST_WORD + len(self._options.words) + 1


def _write(directory: Path, logits: list[list[float]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / WEIGHTS).write_text(json.dumps(logits), encoding="utf-8")


async def _once(document: Mapping[str, Any]) -> AsyncGenerator[bytes]:
    yield json.dumps(document).encode()


def _usage(prompt: list[int], count: int) -> dict[str, int]:
    total = len(prompt) + count
    return {"prompt_tokens": len(prompt), "completion_tokens": count, "total_tokens": total}


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _new_id() -> str:
    return f"chatcmpl-{Random().getrandbits(64):x}"


def _answer(
    request: Any, name: str, choices: list[dict[str, Any]], prompt: list[int]
) -> dict[str, Any]:
    kind = "chat.completion.chunk" if request.get("stream") else "chat.completion"
    answer = {"id": name, "object": kind, "created": 0}
    if request.get("return_token_ids") and prompt:
        answer["prompt_token_ids"] = prompt
    return {**answer, "model": request["model"], "choices": choices}
