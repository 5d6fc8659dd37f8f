"""The engine contract for this engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from agl_template._engine import TemplateEngine
from agl_template._loss import PolicyGradient, PolicyGradientOptions
from agl_template._options import TemplateOptions
from agl_testing.engine_contract import EngineContract
from agl_testing.plugin_contract import PluginContract
from agl_testing.toy_model import ToyModel, toy_logprobs

from agl_core.interfaces import AlgorithmSetup
from agl_core.types import Policy


class TestTemplate(EngineContract):
    tolerance = 1e-9

    @pytest.fixture
    def policy(self, tmp_path: Path) -> Policy:
        """Return a policy with initial weights."""
        ToyModel().save(tmp_path / "model", resumable=False)
        return Policy(name="policy", model=str(tmp_path / "model"), trainable=True)

    @pytest.fixture
    async def engine(self, policy: Policy) -> AsyncIterator[TemplateEngine]:
        loss = PolicyGradient(PolicyGradientOptions())
        setup = AlgorithmSetup(name="grpo", loss_factory=lambda: loss, lr=0.5)
        engine = TemplateEngine(TemplateOptions(), setup)
        await engine.start([policy])
        yield engine
        await engine.stop()

    @pytest.fixture
    def recompute(self) -> Callable[..., list[float]]:
        """Return a function that uses only the library, not the engine."""
        return toy_logprobs

    @pytest.fixture
    def under_way(self, engine: TemplateEngine, policy: Policy) -> Callable[[], Awaitable[int]]:
        async def count() -> int:
            return engine.backend(policy.name).under_way

        return count


class TestPlugin(PluginContract):
    plugin = "agl_template.plugin"
