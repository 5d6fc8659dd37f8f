"""The engine that only serves."""

import pytest
from agl_remote import HttpEngine, HttpOptions
from agl_testing.fake_openai import FakeOpenAI, FakeOptions

from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup
from agl_core.types import Policy


async def test_it_takes_the_one_model_that_is_there() -> None:
    async with FakeOpenAI(options=FakeOptions(models=("only",))) as server:
        engine = HttpEngine(HttpOptions(base_url=server.base_url))
        await engine.start([Policy(name="p", model="auto"), Policy(name="q", model="named")])
        try:
            assert [engine.backend(name).model for name in ("p", "q")] == ["only", "named"]
        finally:
            await engine.stop()


async def test_it_does_not_choose_among_several() -> None:
    async with FakeOpenAI(options=FakeOptions(models=("one", "two"))) as server:
        engine = HttpEngine(HttpOptions(base_url=server.base_url))
        with pytest.raises(ConfigError, match=r"one.*two"):
            await engine.start([Policy(name="p", model="auto")])
        await engine.stop()


async def test_it_refuses_what_needs_weights() -> None:
    options = HttpOptions(base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match="'grpo'"):
        HttpEngine(options, AlgorithmSetup(name="grpo", loss_factory=object))
    engine = HttpEngine(options)
    for refused in (
        engine.save("p", "d"),
        engine.load("p", "d", version=1),
        engine.fingerprint("p"),
    ):
        with pytest.raises(ConfigError, match="an engine that trains"):
            await refused
