from __future__ import annotations

import logging
from typing import Any

import pytest
from agl_testing.fake_openai import FakeOptions

from agl_core.errors import EngineError, MissingTokensError
from agl_core.gateway.probe import logprobs_mode


@pytest.mark.parametrize("mode", ["processed", "raw"])
async def test_probe_tells_how_logprobs_are_taken(make_world: Any, mode: str) -> None:
    world = await make_world(FakeOptions(logprobs_mode=mode))
    found = await world.gateway.probe("trained")
    assert found.token_ids
    assert found.stream_token_ids
    assert found.logprobs == mode
    attempt = await world.attempt()
    await world.ask(attempt)
    (call,) = await world.calls(attempt)
    assert call.logprobs_mode == mode


async def test_unprobed_logprobs_count_as_raw(world: Any) -> None:
    attempt = await world.attempt()
    await world.ask(attempt)
    (call,) = await world.calls(attempt)
    assert call.logprobs_mode == "raw"


@pytest.mark.parametrize(
    "options",
    [FakeOptions(token_ids=False), FakeOptions(logprobs=False), FakeOptions(strict=True)],
    ids=["no ids", "no logprobs", "unknown field"],
)
async def test_trainable_policy_needs_tokens(make_world: Any, options: FakeOptions) -> None:
    world = await make_world(options)
    with pytest.raises(
        MissingTokensError, match=r"'trained'.*HttpBackend.*weights-1.*return_token_ids"
    ):
        await world.gateway.probe("trained")


async def test_frozen_policy_needs_none(make_world: Any) -> None:
    world = await make_world(FakeOptions(strict=True, logprobs=False))
    found = await world.gateway.probe("frozen")
    assert not found.token_ids
    assert not found.stream_token_ids
    assert found.logprobs == "none"


async def test_streams_without_tokens_are_reported(make_world: Any, caplog: Any) -> None:
    world = await make_world(FakeOptions(stream_token_ids=False))
    with caplog.at_level(logging.WARNING):
        found = await world.gateway.probe("trained")
    assert found.token_ids
    assert not found.stream_token_ids
    assert "agents that stream" in caplog.text


async def test_undecidable_logprobs_are_said_to_be_so(world: Any, caplog: Any) -> None:
    def flatten(payload: dict[str, Any]) -> None:
        for choice in payload["choices"]:
            for entry in (choice.get("logprobs") or {}).get("content") or ():
                entry["top_logprobs"] = []

    world.server.tamper = flatten
    with caplog.at_level(logging.WARNING):
        found = await world.gateway.probe("trained")
    assert found.logprobs == "raw"
    assert "count as raw" in caplog.text


async def test_a_dead_backend_is_an_engine_error(world: Any) -> None:
    world.server.fail(1, status=500)
    with pytest.raises(EngineError, match=r"HTTP 500.*out of order"):
        await world.gateway.probe("trained")


@pytest.mark.parametrize(
    ("cool", "warm", "expected"),
    [
        ({"a": -0.1, "b": -2.1}, {"a": -0.1, "b": -2.1}, "raw"),
        ({"a": -0.1, "b": -4.1}, {"a": -0.3, "b": -2.3}, "processed"),
        ({"a": -0.7, "b": -0.7}, {"a": -0.7, "b": -0.7}, None),
        ({"a": -0.1}, {"a": -0.1}, None),
        ({}, {}, None),
    ],
)
def test_mode_from_candidates(cool: Any, warm: Any, expected: str | None) -> None:
    assert logprobs_mode(cool, warm) == expected
