"""Runners in processes of their own: what they publish, from which outbox, and under which name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agl_events._commands import send
from agl_events._observer import RunnerEvents, make_runner_observer
from agl_events._outbox import EventOutbox, host, outboxes, runner_outbox
from agl_testing._store_samples import rollout
from click.testing import CliRunner

from agl_core.app import load_plugins
from agl_core.cli.group import CliState
from agl_core.config import resolve
from agl_core.errors import ConfigError
from agl_core.plugins import PluginManager, Source
from agl_core.types import Attempt, AttemptStatus, Rollout
from tests.plugins.events import memory_bus
from tests.plugins.events.memory_bus import Server
from tests.plugins.events.test_outbox import stored


class Runner:
    """The hooks of a runner's process, called as `agl runner` does."""

    def __init__(self, directory: Path, **events: Any) -> None:
        self.config = resolve(
            {
                "name": "shop",
                "directory": str(directory),
                "events": {"url": "memory://host", **events},
            }
        )
        self.plugins: PluginManager = load_plugins()
        self.plugins.register(memory_bus, Source(name="memory"))
        registry = self.plugins.registry("observers")
        self.events: RunnerEvents = registry.create("events.runner", self.config, self.plugins)

    def run(self, number: int) -> Rollout:
        self.plugins.observe("agl_config_resolved", config=self.config)
        one = rollout()
        attempt = Attempt(id=f"at_{number}", rollout_id=one.id, fence=1, worker="w")
        self.plugins.observe("agl_rollout_started", rollout=one, attempt=attempt)
        ended = Attempt(
            **{name: getattr(attempt, name) for name in ("id", "rollout_id", "fence", "worker")},
            status=AttemptStatus.SUCCEEDED,
        )
        self.plugins.observe("agl_rollout_finished", rollout=one, attempt=ended, spans=[])
        return one


MakeRunner = Callable[..., Runner]


@pytest.fixture
def runner(tmp_path: Path) -> MakeRunner:
    return lambda **events: Runner(tmp_path, **events)


async def test_a_runner_publishes_its_attempts_and_nothing_of_the_trainer(
    runner: MakeRunner, server: Server
) -> None:
    one = runner()
    async with one.events.following():
        ran = one.run(1)
    assert server.channels == ["rollout:started", "rollout:finished"]
    for number, event in enumerate(server.events, start=1):
        assert event.service == f"agl-core/runner/{host()}/1"
        assert event.metadata.pop("outbox")
        assert event.metadata == {"run": "shop", "sequence": number, "version": 1}
        assert event.data["rollout"] == ran.id
    assert one.events.losses.counts == {}


async def test_runners_of_a_machine_have_outboxes_and_names_of_their_own(
    runner: MakeRunner, server: Server, tmp_path: Path
) -> None:
    first, second = runner(), runner(service="mine")
    async with first.events.following(), second.events.following():
        for number in range(3):
            first.run(number)
            second.run(10 + number)
    names = {each.service for each in server.events}
    assert names == {f"agl-core/runner/{host()}/1", f"mine/runner/{host()}/2"}
    for name in names:
        numbers = [each.metadata["sequence"] for each in server.events if each.service == name]
        assert numbers == [1, 2, 3, 4, 5, 6]
    assert len({(each.service, each.metadata["outbox"]) for each in server.events}) == 2
    assert outboxes(tmp_path / "shop") == [
        runner_outbox(tmp_path / "shop", number) for number in (1, 2)
    ]


async def test_a_runner_gets_the_outbox_of_one_that_was_killed(
    runner: MakeRunner, server: Server, tmp_path: Path
) -> None:
    left = EventOutbox.open(runner_outbox(tmp_path / "shop", 1), most=10, most_bytes=1_000)
    left.add([stored(number, b'{"n": %d}' % number) for number in (1, 2)])
    left.close()
    one = runner()
    async with one.events.following():
        one.run(1)
    assert [message.id for message in server.taken[:2]] == ["event_1", "event_2"]
    assert [memory_bus.decode(each.body).metadata["sequence"] for each in server.taken[2:]] == [
        3,
        4,
    ]


async def test_a_bus_that_is_down_costs_a_runner_nothing_but_events(
    runner: MakeRunner, server: Server, tmp_path: Path, caplog: Any
) -> None:
    server.down = True
    one = runner(outbox_events=3)
    async with one.events.following():
        one.run(1)
        one.run(2)
    assert one.events.losses.counts == {"events_dropped": 1, "events_waiting": 3}
    assert "sent when the next runner starts here" in caplog.text
    server.down = False
    again = runner()
    async with again.events.following():
        pass
    assert [each.metadata["sequence"] for each in server.events] == [1, 2, 3]


async def test_a_runner_may_publish_nothing(tmp_path: Path, server: Server) -> None:
    config = resolve({"events": {"url": "memory://host", "runners": False}})
    assert make_runner_observer(config, load_plugins()) is None


async def test_a_runner_without_the_address_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("AGL_EVENTS_URL", raising=False)
    config = resolve({"events": {"content": True}})
    with pytest.raises(ConfigError, match="AGL_EVENTS_URL"):
        make_runner_observer(config, load_plugins())


async def test_a_wrong_password_ends_a_runner_at_its_start(
    runner: MakeRunner, server: Server
) -> None:
    server.login_fails = True
    with pytest.raises(ConfigError, match="refuses the password"):
        async with runner().events.following():
            raise AssertionError("it began")


async def test_a_runner_that_may_write_nowhere_says_so(
    runner: MakeRunner, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "shop").write_text("a file, no directory")
    with pytest.raises(ConfigError, match="cannot be created"):
        async with runner().events.following():
            raise AssertionError("it began")


async def test_an_outbox_that_was_deleted_is_told_from_the_next_of_its_name(
    runner: MakeRunner, server: Server, tmp_path: Path
) -> None:
    """A new file under the same name begins with 1 again, and has an id of its own."""
    for _ in range(2):
        one = runner()
        async with one.events.following():
            one.run(1)
        runner_outbox(tmp_path / "shop", 1).unlink()
    assert [each.metadata["sequence"] for each in server.events] == [1, 2, 1, 2]
    assert len({each.service for each in server.events}) == 1
    assert len({each.metadata["outbox"] for each in server.events}) == 2


def test_all_outboxes_of_a_run_are_sent_except_those_in_use(
    server: Server, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("agl_events._commands._BUSY_S", 0.01)
    files = [tmp_path / "events.db", *(runner_outbox(tmp_path, number) for number in (1, 2))]
    boxes = [EventOutbox.open(file, most=10, most_bytes=1_000) for file in files]
    for number, box in enumerate(boxes):
        box.add([stored(number + 1, b"{}")])
    for box in boxes[:2]:
        box.close()

    class State(CliState):
        def plugins(self, files: Any = ()) -> PluginManager:
            made = load_plugins()
            made.register(memory_bus, Source(name="memory"))
            return made

    shown = CliRunner().invoke(send, [str(tmp_path), "--url", "memory://host"], obj=State())
    boxes[2].close()
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines() == [
        "2 events sent: 2 delivered",
        f"{files[2]} is in use by a process, which sends its events",
    ]
    assert [message.id for message in server.taken] == ["event_1", "event_2"]
