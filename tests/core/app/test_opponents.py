"""P1: whole runs in which an endpoint plays some agents of some training attempts."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace

import pytest
from agl_testing.fake_openai import FakeOpenAI, FakeOptions

import agl_core as agl
from agl_core.errors import TrainingError
from agl_core.plugins import hookimpl
from agl_core.types import Policy, opponent
from tests.core.app.conftest import Bench, says_yes, speak

SHARE = 0.5


async def talk(task: agl.Task) -> str:
    """Each of two agents speaks twice."""
    for _ in range(2):
        await speak("other", f"ask {task.id}")
        answer = await speak("writer", f"write {task.id}")
    return answer


class Played:
    """Follows a run: the policies that answered, by seed of the rollout and agent."""

    def __init__(self):
        self.policies = defaultdict(set)

    def plugin(self):
        @hookimpl
        def agl_trajectories_built(record, trajectories):
            for span in record.spans:
                if span.call is not None:
                    key = record.rollout.seed, span.call.agent
                    self.policies[key].add(span.call.policy)

        return SimpleNamespace(agl_trajectories_built=agl_trajectories_built)


def bench_against(bench: Bench, server: FakeOpenAI, monkeypatch) -> Played:
    monkeypatch.setenv("OPPONENT_KEY", "secret")
    bench.sections = {
        "agents": [],
        "policies": {
            "foe": {
                "base_url": server.base_url,
                "api_key_env": "OPPONENT_KEY",
                "model": "strong",
                "share": SHARE,
            },
            "main": {"agents": ["writer"], "trainable": True},
            "rest": {"agents": ["*"]},
        },
    }
    played = Played()
    bench.plugins = [played.plugin()]
    return played


OPTIONS = FakeOptions(api_key="secret", token_ids=False, logprobs=False, strict=True)


def test_an_endpoint_plays_its_share_of_attempts_and_is_never_trained(bench, monkeypatch):
    with FakeOpenAI(lambda body: "yes", OPTIONS) as server:
        played = bench_against(bench, server, monkeypatch)
        report = bench.train(
            {"agent": talk, "val_tasks": [{"input": n} for n in range(4)]}, train__steps=4
        )
    of_writer = {seed: names for (seed, name), names in played.policies.items() if name == "writer"}
    assert all(len(names) == 1 for names in of_writer.values()), "one policy plays an attempt"
    foes = sum(names == {"foe"} for names in of_writer.values())
    assert 0 < foes < len(of_writer) == 4 * 8
    assert all(names == {"rest"} for (_, name), names in played.policies.items() if name == "other")
    # Its calls are counted, and no batch has one: each agent spoke twice. It plays no evaluation.
    assert report.lost["calls_of_opponents"] == 2 * foes == len(server.log)
    assert sum(len(batch.targets) for batch in bench.engine.batches) == 2 * (len(of_writer) - foes)
    assert all(answered.body["model"] == "strong" for answered in server.log)
    assert report.policies["foe"]["sha256_before"] == ""
    assert "foe" not in bench.engine.backends


def test_who_plays_depends_on_the_seed_of_the_run_alone(tmp_path, monkeypatch):
    """A run that was interrupted draws for its later steps as one that was not."""
    drawn = []
    with FakeOpenAI(lambda body: "yes", OPTIONS) as server:
        for steps in ((4,), (2, 4)):
            bench = Bench(tmp_path / str(len(steps)))
            played = bench_against(bench, server, monkeypatch)
            for end in steps:
                bench.train({"agent": talk}, train__steps=end, train__resume=end != steps[0])
            drawn.append(dict(played.policies))
    assert drawn[0] == drawn[1] != {}


def test_an_opponent_that_does_not_answer_fails_the_attempts_that_it_plays(bench, monkeypatch):
    with FakeOpenAI(lambda body: "yes", OPTIONS) as server:
        bench_against(bench, server, monkeypatch)
        server.fail(1_000, status=500)
        report = bench.train({"agent": talk}, train__steps=1, rollout__max_attempts=1)
    assert report.lost["attempts_dropped_engine"] > 0
    assert "foe" not in {batch.policy for batch in bench.engine.batches}


def test_a_step_in_which_opponents_play_everything_is_an_error(bench, monkeypatch):
    with FakeOpenAI(lambda body: "yes", OPTIONS) as server:
        bench_against(bench, server, monkeypatch)
        bench.sections["policies"]["foe"]["share"] = 1.0
        with pytest.raises(TrainingError, match="calls_of_opponents"):
            bench.train({"agent": talk}, train__steps=1)


def test_an_agent_is_trained_against_a_frozen_copy_of_the_model(bench):
    """A policy with a share may also be the engine's: the weights that the run began with."""
    bench.sections = {
        "agents": [],
        "policies": {
            "start": {"share": 0.5},
            "main": {"agents": ["*"], "trainable": True},
        },
    }
    report = bench.train({"agent": talk, "reward": says_yes}, train__steps=2)
    assert report.lost["calls_of_opponents"] == len(bench.engine.backends["start"].requests) > 0
    assert report.policies["start"]["sha256_before"] == report.policies["start"]["sha256_after"]


def test_an_evaluation_needs_no_opponent(bench, monkeypatch):
    with FakeOpenAI(lambda body: "yes", OPTIONS) as server:
        bench_against(bench, server, monkeypatch)
        app = bench.app({"agent": talk, "val_tasks": [{"input": 1}]})
        evaluation = asyncio.run(app.evaluate())
    assert evaluation.failed == {}
    assert server.log == []


def test_the_draw_of_a_run_is_that_of_its_rollouts(bench, monkeypatch):
    with FakeOpenAI(lambda body: "yes", OPTIONS) as server:
        played = bench_against(bench, server, monkeypatch)
        bench.train({"agent": talk}, train__steps=1)
    foe = Policy(name="foe", share=SHARE)
    assert played.policies
    for (seed, name), names in played.policies.items():
        if name == "writer":
            assert (opponent([foe], seed, agent=name, known_as=name) is not None) == (
                names == {"foe"}
            )
