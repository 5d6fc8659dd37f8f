"""Programs written for agentlightning, trained by the engine on a tiny model."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import agl_compat
import httpx
import pytest
from agl_compat import LitAgent, Triplet
from agl_compat._triplets import ATTRIBUTE

import agl_core
from agl_core.errors import TrainingError
from agl_core.store import SqliteStore
from agl_core.types import RolloutQuery

pytestmark = pytest.mark.filterwarnings("ignore::agl_compat.OldNameWarning")

SETTINGS = {
    "engine": {"name": "torch", "device": "cpu", "threads": 1},
    "train.steps": 2,
    "train.tasks_per_step": 2,
    "algorithm.group_size": 4,
    "algorithm.lr": 1e-3,
}


def ask(llm, text: str) -> str:
    with httpx.Client(timeout=600) as client:
        answer = client.post(
            f"{llm.endpoint}/chat/completions",
            headers={"authorization": f"Bearer {llm.api_key}"},
            json={
                "model": llm.model,
                "messages": [{"role": "user", "content": text}],
                "max_tokens": 8,
                "temperature": 1.0,
            },
        )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"] or ""


def fit(agent, model_path, home, **more):
    settings = {**SETTINGS, "model": model_path, "directory": str(home), **more}
    trainer = agl_compat.Trainer(n_runners=2, settings=settings)
    return trainer.fit(agent, [{"question": f"what{n}?"} for n in range(4)])


def spans(report):
    rows = []

    async def read():
        store = SqliteStore(Path(report.directory) / "store.db")
        await store.open()
        found = await store.rollouts(RolloutQuery())
        rows.extend(await store.spans([rollout.id for rollout in found]))
        await store.close()

    asyncio.run(read())
    return rows


def trained(report):
    return report.policies["trained"]


class Writer(LitAgent[dict]):
    """The shape of the public quick start: a class with one rollout method."""

    def rollout(self, task, resources, rollout):
        llm = resources["main_llm"]
        assert rollout.attempt.attempt_id in llm.get_base_url(
            rollout.rollout_id, rollout.attempt.attempt_id
        )
        said = ask(llm, task["question"])
        return len(set(said)) / 8


def test_a_class_with_a_rollout_method_is_trained(model_path, tmp_path):
    report = fit(Writer(), model_path, tmp_path)

    assert len(report.steps) == 2
    assert trained(report)["sha256_before"] != trained(report)["sha256_after"]
    assert {span.agent for span in spans(report) if span.call} == {"Writer"}
    log = (tmp_path / "run" / "training.log").read_text().splitlines()
    assert [line.split(" ", 1)[1].split()[0] for line in log] == ["run", "step", "step", "run"]


def test_a_program_in_the_shape_of_the_quick_start_trains(model_path, tmp_path):
    program = Path(__file__).with_name("older_program.py")
    done = subprocess.run(
        [sys.executable, str(program)],
        env={
            **os.environ,
            "MODEL": model_path,
            "RUNS": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "sums" / "report.json").read_text())
    weights = report["policies"]["trained"]
    assert len(report["steps"]) == 2
    assert weights["sha256_before"] != weights["sha256_after"]
    assert len(report["evaluations"]) == 2
    for name in ("LitAgent", "Trainer", "VERL(config)", "agent_match"):
        assert done.stderr.count(f"{name} is a name of another library") == 1
    assert "These have no effect: " in done.stderr
    assert "data.max_prompt_length" in done.stderr


def test_returned_triplets_without_logprobs_are_scored_by_the_engine_and_trained(
    model_path, tmp_path
):
    def play(task, rollout):
        number = int(task["question"][4])
        answer = [104, 105 + number, 258][: 1 + rollout.metadata["sample"] % 3]
        return [
            Triplet(prompt={"token_ids": [257, 104]}, response={"token_ids": answer}, reward=r)
            for r in (float(len(answer)), 0.5 * len(answer))
        ]

    report = fit(play, model_path, tmp_path)

    calls = [span for span in spans(report) if span.call is not None]
    assert {span.attributes[ATTRIBUTE] for span in calls} == {"computed"}
    assert {span.call.policy_version for span in calls} == {0, 1}
    assert len(calls) == 2 * 2 * 4 * 2
    assert all(len(s.call.choices[0].logprobs) == len(s.call.choices[0].token_ids) for s in calls)
    assert trained(report)["sha256_before"] != trained(report)["sha256_after"]
    metrics = report.steps[0].metrics
    assert metrics["logprob_error_max"] < 1e-4  # they are those of the weights that were trained
    assert report.steps[0].reward is not None


def test_a_triplet_of_a_recorded_call_has_the_logprobs_of_its_sampling(model_path, tmp_path):
    def play(task, llm):
        with httpx.Client(timeout=600) as client:
            body = client.post(
                f"{llm.endpoint}/chat/completions",
                headers={"authorization": f"Bearer {llm.api_key}"},
                json={
                    "model": llm.model,
                    "messages": [{"role": "user", "content": task["question"]}],
                    "max_tokens": 6,
                    "temperature": 1.3,
                    "return_token_ids": True,
                },
            ).json()
        ids = body["choices"][0]["token_ids"]
        ask(llm, "a call that is not returned")
        return [Triplet(prompt=body["prompt_token_ids"], response=ids, reward=float(sum(ids)))]

    report = fit(play, model_path, tmp_path)

    assert report.lost["calls_untrainable"] == 2 * 2 * 4 * 2
    assert report.steps[0].tokens <= 2 * 4 * 6
    assert report.steps[0].metrics["logprob_error_max"] < 1e-3
    assert trained(report)["sha256_before"] != trained(report)["sha256_after"]


@pytest.mark.parametrize(
    ("triplet", "message"),
    [
        (Triplet([1], [999999], 1.0), "token id 999999, which is not one of policy 'trained'"),
        (Triplet([], [1], 1.0), "has the token ids"),
        (Triplet([1], ["a"], 1.0), "has the token ids"),
        (Triplet([1], [1], float("nan")), "has the reward nan"),
        (Triplet([1], [1, 2], 1.0, {"logprobs": [-0.1]}), "2 response ids but"),
        (Triplet([1], [1], 1.0, {"logprobs": [3.0]}), "log-probability 3.0"),
        (Triplet([1], [1], 1.0, {"temperature": 0}), "temperature 0"),
        (Triplet([1], [1] * 600, 1.0), "context holds"),
    ],
)
def test_a_triplet_that_is_not_exact_is_an_error(model_path, tmp_path, triplet, message):
    with pytest.raises(
        (TrainingError, agl_core.RolloutError, agl_core.CaptureError), match=message
    ):
        fit(lambda task: [triplet], model_path, tmp_path, **{"algorithm.group_size": 1})


def test_given_logprobs_are_recorded_as_given(model_path, tmp_path):
    def play(task, rollout):
        reward = float(rollout.metadata["sample"])
        return [Triplet([257, 104], [104, 105], reward, {"logprobs": [-1.5, -2.0]})]

    report = fit(play, model_path, tmp_path, **{"train.steps": 1})

    calls = [span for span in spans(report) if span.call is not None]
    assert {span.attributes[ATTRIBUTE] for span in calls} == {"given"}
    assert {tuple(span.call.choices[0].logprobs) for span in calls} == {(-1.5, -2.0)}


def test_a_triplet_without_reward_is_rewarded_by_the_final_reward(model_path, tmp_path):
    class Outcome:
        triplets = ({"prompt_ids": [257, 104], "response_ids": [104], "reward": None},)

        def __init__(self, final):
            self.final_reward = final

    def play(task, rollout):
        return Outcome(float(rollout.metadata["sample"]))

    report = fit(play, model_path, tmp_path, **{"train.steps": 1})

    assert report.steps[0].reward == pytest.approx(1.5)
    assert trained(report)["sha256_before"] != trained(report)["sha256_after"]


def test_the_names_warn_once(model_path):
    from agl_compat._names import renamed

    renamed.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            agl_compat.Trainer(settings={"model": model_path})
    assert [str(each.message).split(";")[0] for each in caught] == [
        "Trainer is a name of another library"
    ]
