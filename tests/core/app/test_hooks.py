"""What plugins see of a run, in which order, and what registering does."""

import asyncio
import inspect
import math
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import agl_core as agl
from agl_core.app import App, Inputs
from agl_core.errors import ConfigError
from agl_core.plugins import PluginManager, hookimpl
from agl_core.plugins._manager import Source
from agl_core.plugins._specs import ObserveSpecs, RegisterSpecs
from agl_core.plugins.registry import KINDS
from agl_core.types import Attempt, AttemptStatus, Batch, Resources, Rollout, RolloutStatus, Update
from tests.core.app.conftest import Bench
from tests.core.bandit_engine import BanditEngine

OBSERVE = [name for name in vars(ObserveSpecs) if name.startswith("agl_")]

Seen = list[tuple[str, SimpleNamespace]]


def watcher(seen: Seen) -> SimpleNamespace:
    """A plugin that implements every observing hook and keeps what it is handed."""

    def watch(hook: str) -> Any:
        def keep(*values: Any) -> None:
            seen.append((hook, SimpleNamespace(**dict(zip(names, values, strict=True)))))

        names = list(inspect.signature(getattr(ObserveSpecs, hook)).parameters)[1:]
        given = ", ".join(names)
        scope = {"keep": keep}
        exec(f"def {hook}({given}): keep({given})", scope)  # pluggy reads argument names
        return hookimpl(scope[hook])

    return SimpleNamespace(**{hook: watch(hook) for hook in OBSERVE})


@pytest.fixture
def seen(bench: Bench) -> Seen:
    """Every hook call of a run of two steps, 2 tasks x 4 attempts each."""
    seen: Seen = []
    app = bench.app()
    app._plugins.register(watcher(seen), Source(name="watcher"))
    asyncio.run(app.train())
    return seen


def test_every_observing_hook_is_called_in_the_order_of_the_loop(seen: Seen) -> None:
    calls = [hook for hook, _ in seen]
    step = [
        *["agl_trajectories_built"] * 8,
        "agl_batch_built",
        "agl_update_applied",
        "agl_resources_published",
    ]
    rollouts = {"agl_rollout_started", "agl_rollout_finished"}
    assert [hook for hook in calls if hook not in rollouts] == [
        "agl_run_started",
        "agl_resources_published",
        *step,
        *step,
        "agl_run_finished",
    ]
    assert calls.count("agl_rollout_started") == calls.count("agl_rollout_finished") == 16
    first = calls.index("agl_trajectories_built")
    assert calls[:first].count("agl_rollout_finished") == 8


def test_the_configuration_is_shown_before_anything_starts(bench: Bench) -> None:
    seen: Seen = []
    plugins = bench.app()._plugins
    plugins.register(watcher(seen), Source(name="watcher"))
    App(
        agl.RunConfig(agents=["writer"], model="bandit", name="shown"),
        Inputs(agent=lambda task: "", tasks=[{"input": 1}], reward=lambda *_: 0.0),
        plugins=plugins,
    )
    ((hook, given),) = seen
    assert hook == "agl_config_resolved"
    assert given.config.name == "shown"


def test_rollout_hooks_get_the_attempt_as_it_stands(seen: Seen) -> None:
    started = [given for hook, given in seen if hook == "agl_rollout_started"]
    finished = [given for hook, given in seen if hook == "agl_rollout_finished"]
    for given in started:
        assert isinstance(given.rollout, Rollout)
        assert given.rollout.status is RolloutStatus.RUNNING
        assert isinstance(given.attempt, Attempt)
        assert given.attempt.status is AttemptStatus.RUNNING
    for given in finished:
        assert given.attempt.status is AttemptStatus.SUCCEEDED
        assert given.attempt.sealed
        assert {"planner", "writer"} <= {span.agent for span in given.spans}
        assert all(span.call is None for span in given.spans)
    assert {given.attempt.id for given in started} == {given.attempt.id for given in finished}


def test_training_hooks_get_what_was_trained_on(seen: Seen) -> None:
    by_hook: dict[str, list[SimpleNamespace]] = {}
    for hook, given in seen:
        by_hook.setdefault(hook, []).append(given)
    for given in by_hook["agl_trajectories_built"]:
        assert [path.agent for path in given.trajectories] == ["writer"]
        assert given.trajectories[0].attempt_id == given.record.attempt.id
    assert [given.step for given in by_hook["agl_batch_built"]] == [0, 1]
    assert all(isinstance(given.batch, Batch) for given in by_hook["agl_batch_built"])
    assert [given.step for given in by_hook["agl_update_applied"]] == [0, 1]
    updates = [given.update for given in by_hook["agl_update_applied"]]
    assert all(isinstance(update, Update) for update in updates)
    assert [update.version for update in updates] == [1, 2]


def test_run_hooks_get_the_store_the_versions_and_the_report(seen: Seen) -> None:
    (started,) = [given for hook, given in seen if hook == "agl_run_started"]
    assert started.run_id == "bench"
    assert callable(started.store.rollouts)
    published = [given.resources for hook, given in seen if hook == "agl_resources_published"]
    assert all(isinstance(resources, Resources) for resources in published)
    assert [resources.version for resources in published] == [1, 2, 3]
    (finished,) = [given for hook, given in seen if hook == "agl_run_finished"]
    assert isinstance(finished.report, agl.Report)
    assert len(finished.report.steps) == 2


def test_a_registered_metric_is_logged_each_step(bench: Bench) -> None:
    @hookimpl
    def agl_register_metrics(register: Any) -> None:
        register("longest", f"{__name__}:longest_position")

    app = bench.app()
    plugin = SimpleNamespace(agl_register_metrics=agl_register_metrics)
    app._plugins.register(plugin, Source(name="mine"))
    report = asyncio.run(app.train())
    assert all(step.metrics["longest_position"] > 0 for step in report.steps)


def longest_position(batch: Batch) -> dict[str, float]:
    return {"longest_position": float(max(batch.positions))}


def not_finite(batch: Batch) -> dict[str, float]:
    return {"of_plugin": math.nan, "longest": float(max(batch.positions))}


def test_metrics_that_are_not_finite_are_counted_and_warned_of_once(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hookimpl
    def agl_register_metrics(register: Any) -> None:
        register("broken", f"{__name__}:not_finite")

    update = BanditEngine.update

    async def updated(self: BanditEngine, batch: Batch) -> Update:
        done = await update(self, batch)
        return msgspec.structs.replace(done, metrics={"of_engine": -math.inf, "loss": 0.5})

    monkeypatch.setattr(BanditEngine, "update", updated)

    def train(**settings: Any) -> agl.Report:
        app = bench.app(**settings)
        plugin = SimpleNamespace(agl_register_metrics=agl_register_metrics)
        app._plugins.register(plugin, Source(name="mine"))
        return asyncio.run(app.train())

    assert train().lost["metrics_not_finite"] == 4
    warned = [record.args for record in caplog.records if "left out" in record.message]
    assert sorted(map(str, warned)) == ["('of_engine', -inf)", "('of_plugin', nan)"]
    resumed = train(train__steps=3, train__resume=True)
    assert resumed.lost["metrics_not_finite"] == 6
    assert [step.metrics["loss"] for step in resumed.steps] == [0.5] * 3
    assert not any({"of_engine", "of_plugin"} & step.metrics.keys() for step in resumed.steps)


REGISTER = {
    "agl_register_integrations": "integrations",
    "agl_register_stores": "stores",
    "agl_register_layers": "layers",
    "agl_register_adapters": "adapters",
    "agl_register_rewards": "rewards",
    "agl_register_algorithms": "algorithms",
    "agl_register_optimizers": "optimizers",
    "agl_register_tuners": "tuners",
    "agl_register_losses": "losses",
    "agl_register_engines": "engines",
    "agl_register_models": "models",
    "agl_register_tasks": "tasks",
    "agl_register_metrics": "metrics",
    "agl_register_diagnoses": "diagnoses",
    "agl_register_filters": "filters",
    "agl_register_trackers": "trackers",
    "agl_register_observers": "observers",
    "agl_register_checks": "checks",
    "agl_register_routes": "routes",
    "agl_register_dialects": "dialects",
    "agl_register_rewriters": "rewriters",
    "agl_register_admissions": "admissions",
    "agl_register_gateways": "gateways",
    "agl_register_displays": "displays",
    "agl_register_exporters": "exporters",
    "agl_register_panels": "panels",
    "agl_register_commands": "commands",
}


def test_every_kind_has_its_hook() -> None:
    assert {name for name in vars(RegisterSpecs) if name.startswith("agl_")} == set(REGISTER)
    assert set(REGISTER.values()) == set(KINDS)


@pytest.mark.parametrize(("hook", "kind"), REGISTER.items())
def test_what_a_hook_registers_is_found_by_kind_and_name(hook: str, kind: Any) -> None:
    @hookimpl(specname=hook)
    def offer(register: Any) -> None:
        register("mine", f"{__name__}:longest_position", summary="the longest path")

    manager = PluginManager(environ={})
    manager.register(SimpleNamespace(offer=offer), Source(name="mine"))
    registry = manager.registry(kind)
    assert registry.names() == ["mine"]
    assert registry.resolve("mine") is longest_position
    assert registry.get("mine").summary == "the longest path"
    with pytest.raises(ConfigError, match="did you mean 'mine'"):
        registry.resolve("mien")
    others = [manager.registry(other).names() for other in KINDS if other != kind]
    assert not any(others)
    (info,) = manager.plugins()
    assert info.registers == {kind: ("mine",)}
