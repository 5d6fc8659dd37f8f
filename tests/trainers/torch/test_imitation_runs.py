"""A chain of runs: conversations, then the best of each group, then the stored run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agl_imitation._conversations import read_examples
from agl_imitation._rendering import Chat, rendered
from agl_imitation._sft import SFT, SFTOptions
from agl_records import export_rollouts
from agl_torch.engine import TorchEngine

import agl_core as agl
from agl_core.errors import ConfigError
from agl_core.types import Policy

ANSWER = "9 euros"
STEPS, TASKS, GROUP = 2, 2, 4


def run_agent(task: agl.Task) -> str:
    say(task, "editor")
    return say(task, "writer")


def say(task: agl.Task, agent: str) -> str:
    import httpx

    llm = agl.current().llm
    with agl.agent_scope(agent), httpx.Client(timeout=600) as client:
        answer = client.post(
            f"{llm.base_url}/chat/completions",
            json={
                "model": "any",
                "messages": [{"role": "user", "content": f"price{task.input}?"}],
                "max_tokens": 16,
                "temperature": 1.2,
            },
        )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"] or ""


def reward(task: agl.Task, output: str, attempt: agl.AttemptRecord) -> float:
    return float(output == ANSWER) + 0.5 * float(bool(output.strip()))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, model_path):
    """Directory, the report of sft, and that of rft on its weights."""
    home = tmp_path_factory.mktemp("runs")
    data = home / "data.jsonl"
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"price{number}?"},
                {"role": "assistant", "content": ANSWER},
            ]
        }
        for number in range(TASKS)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(name, model, algorithm, steps, **inputs):
        return agl.train(
            **inputs,
            config={
                "name": name,
                "directory": str(home),
                "agents": ["writer"],
                "model": model,
                "engine": {"name": "torch", "device": "cpu", "threads": 1},
                "algorithm": algorithm,
                "train": {"steps": steps, "tasks_per_step": TASKS, "checkpoint_every": steps},
                "rollout": {"timeout_s": 600},
            },
            progress=False,
        )

    algorithm = {"name": "sft", "data": [str(data)], "lr": 3e-3, "batch_size": 2}
    taught = run("taught", model_path, algorithm, 25)
    model = str(Path(taught.export(str(home / "export"))) / "trained")
    chosen = run(
        "chosen",
        model,
        {"name": "rft", "lr": 1e-3, "group_size": GROUP, "equal_groups": "train", "keep": 1},
        STEPS,
        agent=run_agent,
        tasks=[{"input": number} for number in range(TASKS)],
        reward=reward,
    )
    return home, taught, chosen, model


@pytest.fixture(scope="module")
def rows(runs):
    """The recorded paths of the rft run, with their tokens."""
    home, *_ = runs
    export_rollouts(home / "chosen", home / "rows.jsonl")
    return [json.loads(line) for line in (home / "rows.jsonl").read_text().splitlines()]


def policy_of(model):
    return Policy(name="trained", model=model, agents=("writer",), trainable=True, version=7)


def paths_of(groups):
    return [path for group in groups for paths in group.trajectories for path in paths]


def test_what_was_imitated_is_answered(runs, rows):
    _, taught, _, _ = runs
    assert taught.steps[-1].metrics["loss"] < 0.1 * taught.steps[0].metrics["loss"]
    assert any(row["messages"][-1]["content"] == ANSWER for row in rows)
    assert [step.reward for step in taught.steps] == [None] * len(taught.steps)
    assert taught.reward is None
    assert "reward" not in taught.summary()


def test_rft_trains_the_best_attempt_of_each_group(runs):
    _, _, chosen, _ = runs
    assert chosen.calls == 2 * STEPS * TASKS * GROUP
    assert chosen.rows.by_agent == {"writer": STEPS * TASKS}
    trained = chosen.policies["trained"]
    assert trained["sha256_before"] != trained["sha256_after"]


async def test_a_stored_run_is_imitated_on_its_recorded_tokens(runs, rows, run_engine):
    home, _, _, model = runs
    policy = policy_of(model)
    algorithm = SFT(SFTOptions(runs=[str(home / "chosen")], batch_size=len(rows)))
    async with run_engine([policy]) as engine:
        groups, losses = await algorithm.demonstrate(0, {"trained": policy}, engine, seed=0)
    assert losses.counts == {}
    assert sorted(list(path.token_ids) for path in paths_of(groups)) == sorted(
        row["token_ids"] for row in rows
    )
    calls = [call for path in paths_of(groups) for call in path.calls]
    assert {(call.policy, call.policy_version) for call in calls} == {("trained", 7)}
    assert {each.policy for each in groups} == {"trained"}


async def test_attempts_of_a_stored_run_are_chosen_by_reward(runs, rows, run_engine):
    home, _, _, model = runs
    policy = policy_of(model)
    good = [row for row in rows if row["reward"] >= 1.0]
    options = SFTOptions(runs=[str(home / "chosen")], min_reward=1.0, batch_size=64)
    best = SFTOptions(runs=[str(home / "chosen")], keep=1, batch_size=STEPS * TASKS)
    async with run_engine([policy]) as engine:
        named = {"trained": policy}
        above, losses = await SFT(options).demonstrate(0, named, engine, seed=0)
        kept, left_out = await SFT(best).demonstrate(0, named, engine, seed=0)
    above_ids = {path.attempt_id for path in paths_of(above)}
    assert above_ids == {row["attempt_id"] for row in good}
    assert losses.counts.get("attempts_below_min_reward", 0) == len(rows) - len(good)
    greatest = {}
    for row in rows:
        greatest[row["group_id"]] = max(greatest.get(row["group_id"], 0.0), row["reward"])
    rewards = {row["attempt_id"]: (row["group_id"], row["reward"]) for row in rows}
    assert sorted(rewards[path.attempt_id] for path in paths_of(kept)) == sorted(greatest.items())
    assert left_out.counts == {"attempts_not_kept": len(rows) - STEPS * TASKS}


async def test_calls_without_recorded_tokens_are_rendered_again(runs, run_engine):
    home, _, _, model = runs
    editor = Policy(name="trained", model=model, agents=("editor",), trainable=True)
    algorithm = SFT(SFTOptions(runs=[str(home / "chosen")], agents=["editor"], batch_size=64))
    async with run_engine([editor]) as engine:
        groups, losses = await algorithm.demonstrate(0, {"trained": editor}, engine, seed=0)
        render = engine.renderer(model)
    count = losses.counts["calls_rendered_again"]
    assert 0 < count <= STEPS * TASKS * GROUP
    prompts = [
        list(render([{"role": "user", "content": f"price{number}?"}], []))
        for number in range(TASKS)
    ]
    calls = [call for path in paths_of(groups) for call in path.calls]
    assert len(calls) == 64
    assert all(list(call.prompt_ids) in prompts for call in calls)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_reward": 99.0}, "no attempt to imitate .*'attempts_below_min_reward': 16"),
        ({"agents": ["nobody"]}, "'nobody' was not seen"),
        ({"runs": ["nowhere"]}, "'nowhere' is not a run's directory"),
    ],
)
async def test_a_run_without_what_is_asked_for_is_refused(runs, run_engine, options, message):
    home, _, _, model = runs
    policy = policy_of(model)
    chosen = SFT(SFTOptions(**{"runs": [str(home / "chosen")], **options}))
    async with run_engine([policy]) as engine:
        with pytest.raises(ConfigError, match=message):
            await chosen.demonstrate(0, {"trained": policy}, engine, seed=0)


async def test_tokens_of_another_vocabulary_are_refused(runs, run_engine, monkeypatch):
    home, _, _, model = runs
    policy = policy_of(model)
    async with run_engine([policy]) as engine:
        monkeypatch.setattr(engine, "vocab_size", lambda policy: 50)
        with pytest.raises(ConfigError, match="a model with another vocabulary sampled them"):
            await SFT(SFTOptions(runs=[str(home / "chosen")])).demonstrate(
                0, {"trained": policy}, engine, seed=0
            )


def test_an_exported_run_reads_back_as_the_recorded_tokens(runs, rows):
    home, _, _, model = runs
    summary = export_rollouts(home / "chosen", home / "openai.jsonl", format="openai")
    chat = Chat(policy=policy_of(model), render=TorchEngine.renderer(model), limit=512)
    examples = read_examples(home / "openai.jsonl")
    assert len(examples) == summary.rows > 0
    recorded = [row["token_ids"] for row in rows]
    for example in examples:
        (path,) = paths_of([rendered(example, chat)])
        assert list(path.token_ids) in recorded
