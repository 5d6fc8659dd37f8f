"""Runs with an event bus: what they publish, when, and what a fault of the bus costs them."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from agl_events import CHANNELS, schema_of
from agl_events._facts import SCHEMAS
from agl_testing.plugin_contract import PluginContract

import agl_core as agl
from agl_core.app import App
from agl_core.errors import ConfigError, PluginError, TrainingError
from agl_core.plugins import Source
from tests.core.app.conftest import Bench
from tests.core.bandit_engine import BanditEngine
from tests.plugins.events import memory_bus
from tests.plugins.events.memory_bus import Server


class TestPlugin(PluginContract):
    plugin = "agl_events.plugin"


def app_of(bench: Bench, inputs: Any = None, **events: Any) -> App:
    bench.sections["events"] = {"url": "memory://host", **events}
    bench.plugins = [memory_bus]
    return bench.app(inputs)


def train(bench: Bench, inputs: Any = None, **events: Any) -> agl.Report:
    return asyncio.run(app_of(bench, inputs, **events).train())


VAL = {"val_tasks": [{"input": 1}]}


def test_every_hook_is_an_event(bench: Bench, server: Server) -> None:
    report = train(bench, VAL)
    counts = {channel: server.channels.count(channel) for channel in CHANNELS}
    assert counts == {
        "config:resolved": 1,
        "run:started": 1,
        "rollout:started": 18,
        "rollout:finished": 18,
        "trajectories:built": 16,
        "batch:built": 2,
        "update:applied": 2,
        "resources:published": 3,
        "step:finished": 2,
        "evaluation:finished": 2,
        "run:finished": 1,
        "run:failed": 0,
    }
    assert server.channels[:2] == ["config:resolved", "run:started"]
    assert server.channels[-1] == "run:finished"
    assert not [cause for cause in report.lost if cause.startswith("events")]
    events = server.events
    (outbox,) = {event.metadata.pop("outbox") for event in events}
    assert len(outbox) == 16
    for number, event in enumerate(events, start=1):
        assert event.service == "agl-core"
        assert event.metadata == {"run": "bench", "sequence": number, "version": 1}
        assert event.time.endswith("+00:00")


def test_events_hold_the_facts_of_the_run(bench: Bench, server: Server) -> None:
    report = train(bench, VAL)
    found: dict[str, list[dict[str, Any]]] = {}
    for event in server.events:
        found.setdefault(event.channel, []).append(event.data)
    assert [each["version"] for each in found["update:applied"]] == [1, 2]
    assert [each["step"] for each in found["step:finished"]] == [1, 2]
    (finished,) = found["run:finished"]
    assert finished["calls"] == report.calls
    assert finished["best"] == report.best
    assert finished["score"]["mean"] == report.evaluations[-1].score.mean
    started = {each["attempt"] for each in found["rollout:started"]}
    assert started == {each["attempt"] for each in found["rollout:finished"]}
    assert all(set(each["rewards"]) == {"main"} for each in found["rollout:finished"])
    assert {each["status"] for each in found["rollout:finished"]} == {"succeeded"}
    assert found["config:resolved"][0]["agents"] == ["writer"]
    assert found["config:resolved"][0]["algorithm"] == "reinforce"


def test_the_data_of_every_event_fits_its_schema(bench: Bench, server: Server) -> None:
    fastjsonschema = pytest.importorskip("fastjsonschema")
    train(bench, VAL, content=True)
    validators = {name: fastjsonschema.compile(schema_of(name)) for name in SCHEMAS}
    for event in server.events:
        validators[event.channel](event.data)
        msgspec.convert(event.data, SCHEMAS[event.channel])


def test_every_channel_has_a_schema() -> None:
    assert tuple(SCHEMAS) == CHANNELS


def test_content_is_left_out_unless_asked_for(bench: Bench, server: Server) -> None:
    inputs = {"tasks": [{"input": f"ada-{n}@example.org"} for n in range(4)]}
    train(bench, inputs)
    text = b"".join(message.body for message in server.taken).decode()
    assert "example.org" not in text
    assert '"output"' not in text
    server.taken.clear()
    bench.sections["name"] = "second"
    train(bench, inputs, content=True)
    text = b"".join(message.body for message in server.taken).decode()
    assert "ada-0@example.org" in text
    assert '"output"' in text


def test_an_error_that_ends_a_run_is_an_event(bench: Bench, server: Server) -> None:
    class Broken(BanditEngine):
        async def update(self, batch: Any) -> Any:
            raise TrainingError("the planted error")

    bench.engine_class = Broken
    with pytest.raises(TrainingError, match="planted"):
        train(bench)
    assert server.channels[-1] == "run:failed"
    assert server.events[-1].data == {"run": "bench", "error": "TrainingError"}


def test_a_bus_that_is_down_all_the_time_costs_nothing_but_events(
    bench: Bench, server: Server, caplog: Any
) -> None:
    server.down = True
    report = train(bench)
    assert len(report.steps) == 2
    waiting = report.lost["events_waiting"]
    assert waiting == 60
    assert "secret" not in caplog.text
    stored = json.loads((bench.directory / "bench" / "report.json").read_text())
    assert stored["lost"]["events_waiting"] == waiting
    server.down = False
    resumed = asyncio.run(resume(bench).train())
    assert resumed.lost.get("events_waiting", 0) in (0, waiting)
    assert len(server.taken) > waiting
    assert [each.metadata["sequence"] for each in server.events] == list(
        range(1, len(server.taken) + 1)
    )


def resume(bench: Bench) -> App:
    bench.sections["train"] = {"steps": 3, "tasks_per_step": 2, "resume": True}
    return app_of(bench)


def test_dropped_events_are_in_step_and_report(bench: Bench, server: Server) -> None:
    server.down = True
    report = train(bench, outbox_events=10)
    assert report.lost["events_waiting"] == 10
    assert report.lost["events_dropped"] > 40


def test_a_fact_that_cannot_be_had_stops_nothing(
    bench: Bench, server: Server, monkeypatch: Any
) -> None:
    def broken(*given: Any, **named: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("agl_events._facts.BatchBuilt.of", broken)
    report = train(bench)
    assert report.lost["events_dropped"] == 2
    assert "batch:built" not in server.channels


def test_an_evaluation_apart_publishes_nothing(bench: Bench, server: Server) -> None:
    asyncio.run(app_of(bench, VAL).evaluate())
    assert server.taken == []


def test_a_resumed_run_may_have_other_events(bench: Bench, server: Server) -> None:
    train(bench)
    bench.sections.pop("events")
    bench.sections["train"] = {"steps": 3, "tasks_per_step": 2, "resume": True}
    assert len(bench.train().steps) == 3


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"url": "http://host"}, "has the scheme 'http': use one of"),
        ({"url": "host"}, "has the scheme ''"),
        ({"url": "memory://user:secret@"}, "has no host"),
        ({"url": "memory://user:secret@host:port"}, "wrong port"),
        ({"url": ""}, "AGL_EVENTS_URL"),
        ({"url": "memory://host", "historie": 3}, "did you mean 'events.history'"),
        ({"url": "memory://host", "history": 0}, "events.history = 0"),
        ({"url": "memory://host", "prefix": "a b"}, "events.prefix"),
        ({"url": "memory://host", "event_kb": 10**6}, "events.event_kb"),
    ],
)
def test_a_wrong_section_is_an_error_before_anything_starts(
    bench: Bench, section: dict[str, Any], said: str, monkeypatch: Any
) -> None:
    monkeypatch.delenv("AGL_EVENTS_URL", raising=False)
    with pytest.raises(ConfigError) as failed:
        train(bench, **section)
    assert said in str(failed.value)
    assert "secret" not in str(failed.value)
    assert bench.engines == [] or bench.engine.backends == {}


def test_names_are_checked_without_a_run(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="histori"):
        app_of(bench, url="memory://host", histori=1)


def test_the_address_may_come_from_the_environment(
    bench: Bench, server: Server, monkeypatch: Any
) -> None:
    monkeypatch.setenv("MY_BUS", "memory://user:secret@host")
    train(bench, url="", url_env="MY_BUS")
    assert server.channels[-1] == "run:finished"
    files = (bench.directory / "bench").rglob("*")
    texts = [path.read_bytes() for path in files if path.is_file()]
    assert not [text for text in texts if b"secret" in text]


def test_a_refused_password_ends_the_run_before_weights_are_loaded(
    bench: Bench, server: Server
) -> None:
    server.login_fails = True
    with pytest.raises(ConfigError, match="refuses the password"):
        train(bench)
    assert bench.engine.backends == {}


def test_an_outbox_of_a_later_version_ends_the_run_before_weights_are_loaded(
    bench: Bench, server: Server
) -> None:
    import sqlite3

    train(bench)
    with sqlite3.connect(bench.directory / "bench" / "events.db") as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(ConfigError, match="has version 9"):
        asyncio.run(resume(bench).train())


def test_a_run_without_the_plugin_says_what_is_missing(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "events")
    with pytest.raises((ConfigError, PluginError), match="events"):
        train(bench)


def test_other_plugins_see_their_hooks_as_before(bench: Bench, server: Server) -> None:
    app = app_of(bench)
    seen: list[Any] = []

    class Watcher:
        @agl.hookimpl
        def agl_run_finished(self, report: Any) -> None:
            seen.append(report)

    app._plugins.register(Watcher(), Source(name="watcher"))
    asyncio.run(app.train())
    assert len(seen) == 1
