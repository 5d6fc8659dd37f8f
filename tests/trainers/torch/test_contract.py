"""The engine through the whole contract, with full weights, with an adapter, and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from agl_endpoints import OneModel, openai_server
from agl_remote import HttpEngine, HttpOptions
from agl_testing.engine_contract import EngineContract
from agl_torch.engine import TorchEngine
from agl_torch.losses.policy_gradient import ClipOptions, PolicyGradient
from agl_torch.options import LoraOptions, TorchOptions

from agl_core.interfaces import AlgorithmSetup
from agl_core.types import Policy


def setup() -> AlgorithmSetup:
    def loss() -> PolicyGradient:
        return PolicyGradient(ClipOptions())

    return AlgorithmSetup(name="grpo", loss_factory=loss, lr=1e-3, token_numbers=True)


class _OnTorch(EngineContract):
    tolerance = 2e-5
    options: TorchOptions

    @pytest.fixture
    def policy(self, model_path: str) -> Policy:
        return Policy(name="p", model=model_path, trainable=True)

    @pytest.fixture
    def algorithm_setup(self) -> AlgorithmSetup:
        return setup()

    @pytest.fixture
    async def torch_engine(self, policy: Policy) -> AsyncIterator[TorchEngine]:
        engine = TorchEngine(self.options, setup())
        await engine.start([policy])
        yield engine
        await engine.stop()

    @pytest.fixture
    def recompute(self, recompute: Callable[..., list[float]]) -> Callable[..., Any]:
        def logprobs(
            directory: str, prompt: Sequence[int], answer: Sequence[int], temperature: float
        ) -> list[float]:
            return recompute(directory, prompt, answer, temperature=temperature)

        return logprobs

    @pytest.fixture
    def under_way(self, torch_engine: TorchEngine) -> Callable[[], Awaitable[int]]:
        async def count() -> int:
            return int(torch_engine._worker.lanes["p"].busy)

        return count


class TestTorch(_OnTorch):
    options = TorchOptions(device="cpu", threads=1)

    @pytest.fixture
    def engine(self, torch_engine: TorchEngine) -> TorchEngine:
        return torch_engine


class TestTorchWithAnAdapter(TestTorch):
    options = TorchOptions(device="cpu", threads=1, lora=LoraOptions(rank=4))


class TestHttp(_OnTorch):
    """Engine ``http`` before a server of engine ``torch``."""

    options = TorchOptions(device="cpu", threads=1)

    @pytest.fixture
    async def engine(self, torch_engine: TorchEngine, policy: Policy) -> AsyncIterator[HttpEngine]:
        server = openai_server(OneModel(torch_engine.backend("p"), policy.model))
        url = await server.start("127.0.0.1", 0)
        engine = HttpEngine(HttpOptions(base_url=f"{url}/v1"))
        await engine.start([policy])
        yield engine
        await engine.stop()
        await server.stop()

    @pytest.fixture
    def decode(self, torch_engine: TorchEngine) -> Callable[..., Awaitable[str]]:
        return torch_engine.backend("p").detokenize
