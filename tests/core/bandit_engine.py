"""An engine whose policies choose one of a few words: small enough to check a whole run by hand."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup, Backend, BackendReply, Engine
from agl_core.types import Batch, Policy, Update

WORDS = ("yes", "no", "maybe")
FIRST_ID = 300
"""Token id of the first word; prompts are the UTF-8 bytes of their text, ids 0 to 255."""

_WEIGHTS = "logits.json"


class BanditReply:
    """A whole answer that is there at once."""

    def __init__(self, chunks: Sequence[bytes], *, content_type: str, status: int = 200) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {"content-type": content_type}
        self._chunks = chunks

    async def body(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    async def close(self) -> None:
        return


class BanditBackend(Backend):
    """Answers with one word drawn from the policy's softmax; ``seed`` fixes the draw."""

    def __init__(self, logits: list[float], *, token_ids: bool = True) -> None:
        self.logits = logits
        self.requests: list[dict[str, Any]] = []
        self._token_ids = token_ids

    async def chat(
        self,
        body: bytes,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> BackendReply:
        request = msgspec.json.decode(body)
        self.requests.append(request)
        temperature = request.get("temperature", 1.0) or 1.0
        chances = softmax(self.logits, temperature)
        rng = random.Random(request.get("seed"))
        action = rng.choices(range(len(WORDS)), chances)[0]
        answer = self._answer(request, action, math.log(chances[action]))
        if not request.get("stream"):
            return BanditReply([msgspec.json.encode(answer)], content_type="application/json")
        return BanditReply(_events(answer), content_type="text/event-stream")

    async def close(self) -> None:
        return

    def _answer(self, request: dict[str, Any], action: int, logprob: float) -> dict[str, Any]:
        text = "".join(str(message.get("content")) for message in request["messages"])
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": WORDS[action]},
            "finish_reason": "stop",
        }
        if request.get("logprobs"):
            entry: dict[str, Any] = {
                "token": WORDS[action],
                "logprob": logprob,
                "bytes": None,
                "top_logprobs": [],
            }
            choice["logprobs"] = {"content": [entry]}
        digest = hashlib.sha256(msgspec.json.encode([request, action])).hexdigest()
        answer = {
            "id": f"chatcmpl-{digest[:24]}",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [choice],
            "usage": {"prompt_tokens": len(text), "completion_tokens": 1, "total_tokens": 0},
        }
        if request.get("return_token_ids") and self._token_ids:
            answer["prompt_token_ids"] = list(text.encode())
            choice["token_ids"] = [FIRST_ID + action]
        return answer


class BanditEngine(Engine):
    """Trains softmax logits by the plain policy gradient."""

    trains = True

    def __init__(self, setup: AlgorithmSetup | None = None, *, token_ids: bool = True) -> None:
        """Start with even odds.

        Args:
            setup: Of the chosen algorithm; only its `lr` matters.
            token_ids: False for a backend that cannot be trained from.
        """
        self.lr = setup.lr if setup is not None else 0.0
        self.batches: list[Batch] = []
        self.setups: list[AlgorithmSetup] = []
        """What `configure` got."""
        self.backends: dict[str, BanditBackend] = {}
        self._token_ids = token_ids
        self._versions: dict[str, int] = {}

    async def start(self, policies: Sequence[Policy]) -> None:
        for policy in policies:
            self._versions[policy.name] = policy.version
            self.backends[policy.name] = BanditBackend(
                [0.0] * len(WORDS), token_ids=self._token_ids
            )

    async def stop(self) -> None:
        return

    def backend(self, policy: str) -> Backend:
        return self.backends[policy]

    async def update(self, batch: Batch) -> Update:
        """One step along ``sum w A grad log p / sum w``."""
        self.batches.append(batch)
        logits = self.backends[batch.policy].logits
        chances = softmax(logits, 1.0)
        total = sum(batch.weights) or 1.0
        gradient = [0.0] * len(logits)
        for target, advantage, weight in zip(
            batch.targets, batch.advantages, batch.weights, strict=True
        ):
            for action, chance in enumerate(chances):
                hit = 1.0 if target == FIRST_ID + action else 0.0
                gradient[action] += weight * advantage * (hit - chance) / total
        logits[:] = [logit + self.lr * slope for logit, slope in zip(logits, gradient, strict=True)]
        self._versions[batch.policy] += 1
        return Update(policy=batch.policy, step=batch.step, version=self._versions[batch.policy])

    async def configure(self, setup: AlgorithmSetup) -> None:
        self.lr = setup.lr
        self.setups.append(setup)

    async def save(self, policy: str, directory: str, *, resumable: bool = True) -> None:
        _write(Path(directory), self.backends[policy].logits)

    async def load(self, policy: str, directory: str, *, version: int) -> None:
        self.backends[policy].logits[:] = _read(Path(directory))
        self._versions[policy] = version

    async def fingerprint(self, policy: str) -> str:
        return hashlib.sha256(msgspec.json.encode(self.backends[policy].logits)).hexdigest()


def softmax(logits: Sequence[float], temperature: float) -> list[float]:
    """Probabilities of the logits divided by the temperature."""
    scaled = [logit / temperature for logit in logits]
    top = max(scaled)
    powers = [math.exp(logit - top) for logit in scaled]
    return [power / sum(powers) for power in powers]


def _write(directory: Path, logits: list[float]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _WEIGHTS).write_bytes(msgspec.json.encode(logits))


def _read(directory: Path) -> list[float]:
    file = directory / _WEIGHTS
    if not file.is_file():
        raise ConfigError(f"There are no weights at {file}")
    return msgspec.json.decode(file.read_bytes(), type=list[float])


def _events(answer: dict[str, Any]) -> list[bytes]:
    """The same answer as server-sent events."""
    choice = answer["choices"][0]
    base = {key: answer[key] for key in ("id", "created", "model")}
    base["object"] = "chat.completion.chunk"
    delta: dict[str, Any] = {"index": 0, "delta": choice["message"], "finish_reason": None}
    delta |= {key: choice[key] for key in ("logprobs", "token_ids") if key in choice}
    first: dict[str, Any] = {**base, "choices": [delta]}
    if "prompt_token_ids" in answer:
        first["prompt_token_ids"] = answer["prompt_token_ids"]
    last: dict[str, Any] = {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    chunks = [msgspec.json.encode(chunk) for chunk in (first, last)]
    return [b"data: " + chunk + b"\n\n" for chunk in (*chunks, b"[DONE]")]
