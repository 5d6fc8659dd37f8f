"""A run whose trainer and runners are processes of their own, with a real server."""

import asyncio
import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agl_events import BusEvent

from tests.e2e.test_distributed import Deployment
from tests.plugins.events.bus_contract import opened
from tests.plugins.redis.conftest import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def pieces(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    yield made
    made.end()


async def kept(url: str, prefix: str) -> list[BusEvent]:
    bus = await opened(url, prefix)
    try:
        return await bus.history(["*"], 10_000)
    finally:
        await bus.close()


def trained(pieces: Deployment, config: Path) -> None:
    trainer = pieces.start("train", str(config), disabled="")
    assert trainer.popen.wait() == 0, trainer.said
    report = json.loads((pieces.directory / "runs" / "run" / "report.json").read_bytes())
    assert not [cause for cause in report["lost"] if cause.startswith("events")]


def by_service(events: list[BusEvent]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for event in events:
        found.setdefault(event.service, Counter())[event.channel] += 1
    return found


@pytest.mark.parametrize("shared", ["valkey"], indirect=True)
def test_trainer_and_runners_publish_each_happening_once(
    pieces: Deployment, shared: RedisServer, prefix: str
) -> None:
    config = pieces.settings(events={"url": shared.url, "prefix": prefix})
    pieces.serve()
    runner = pieces.start("runner", str(config), "--processes", "2", disabled="")
    trained(pieces, config)
    assert runner.interrupt() == 130, runner.said
    assert "24 attempts ended, workers replaced: none, lost nothing" in runner.said

    events = asyncio.run(kept(shared.url, prefix))
    services = by_service(events)
    own = services.pop("agl-core")
    assert not [channel for channel in own if channel.startswith("rollout:")]
    assert (own["config:resolved"], own["run:started"], own["run:finished"]) == (1, 1, 1)
    assert (own["step:finished"], own["trajectories:built"]) == (3, 24)
    assert all(name.startswith("agl-core/runner/") for name in services)
    assert sum(services.values(), Counter()) == {"rollout:started": 24, "rollout:finished": 24}
    for channel in ("rollout:started", "rollout:finished"):
        attempts = [each.data["attempt"] for each in events if each.channel == channel]
        assert len(set(attempts)) == 24
    for name in ("agl-core", *services):
        numbers = [each.metadata["sequence"] for each in events if each.service == name]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("own", ["valkey"], indirect=True)
def test_a_runner_that_is_killed_while_the_bus_is_down_loses_nothing(
    pieces: Deployment, own: RedisServer, prefix: str, monkeypatch: Any
) -> None:
    """Its events wait on disk, and the next runner on the machine sends them in order."""
    config = pieces.settings(
        events={"url": own.url, "prefix": prefix, "flush_s": 0.1}, train={"steps": 1}
    )
    own.stop()
    pieces.serve()
    runner = pieces.start("runner", str(config), disabled="")
    trainer = pieces.start("train", str(config), disabled="")
    assert trainer.popen.wait() == 0, trainer.said
    box = next((pieces.directory / "runs" / "run").glob("events.*.1.db-wal"))
    while len(set(re.findall(rb"event_[0-9a-f]{32}", box.read_bytes()))) < 16:
        pieces_alive(runner)
    runner.popen.send_signal(signal.SIGKILL)
    runner.popen.wait()
    own.start()
    again = pieces.start("runner", str(config), disabled="")

    def sent() -> list[BusEvent]:
        return asyncio.run(kept(own.url, prefix))

    while len(events := sent()) < 16:
        pieces_alive(again)
    assert again.interrupt() == 130, again.said
    (service,) = by_service(events)
    assert service.endswith("/1")
    numbers = [each.metadata["sequence"] for each in events]
    assert sorted(numbers) == list(range(1, 17))
    assert len({each.id for each in events}) == 16


def pieces_alive(process: Any) -> None:
    assert process.popen.poll() is None, process.said
