"""Exports hold what joins exactly, and count everything else."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys

import agl_records
import msgspec
import pytest
from agl_records import ExportOptions, TrajectoryRow, export_from
from agl_testing.attempts import ScriptedAttempt
from msgspec.structs import replace

from agl_core._builtin import load_plugins
from agl_core.errors import ConfigError, MissingExtraError, pip_line
from agl_core.interfaces import Engine
from agl_core.plugins import Registry
from agl_core.types import Report
from tests.plugins.records.recorded import CONFIG, FAILURE, spoken


async def export(run, config=CONFIG, **options):
    """Rows, and what is said of the rest."""
    stream = io.BytesIO()
    summary = await export_from(
        run.store, stream, ExportOptions(**options), plugins=load_plugins(), config=config
    )
    return [json.loads(line) for line in stream.getvalue().splitlines()], summary


async def test_a_row_is_a_token_path_with_what_it_earned(run):
    rollout = await run.add(spoken(0.5))

    (row,), summary = await export(run)

    typed = msgspec.convert(row, TrajectoryRow)
    assert (typed.rollout_id, typed.task_id, typed.group_id) == (rollout, "t1", "g")
    assert (typed.run_id, typed.mode, typed.status) == ("run", "train", "succeeded")
    assert (typed.agent, typed.policy) == ("writer", "trained")
    assert (typed.reward, typed.score) == (0.5, 0.5)
    assert (typed.token_ids, typed.call_index) == ([1, 2, 3], [-1, -1, 0])
    assert len(typed.logprobs) == 3
    assert typed.messages[-1] == {"role": "assistant", "content": "hé\ud800llo"}
    assert typed.calls[0].prompt_tokens == 2
    assert typed.calls[0].response_tokens == 1
    assert (summary.rows, summary.attempts, summary.left_out) == (1, 1, {})


async def test_a_row_has_the_alias_of_its_agent(run):
    """G15: null where the agent has none."""
    await run.add(spoken(0.5, agent="seat 3", alias="writer"))
    await run.add(spoken(0.5))

    rows, _ = await export(run)

    assert [(row["agent"], row["alias"]) for row in rows] == [
        ("seat 3", "writer"),
        ("writer", None),
    ]


async def test_chat_examples_are_of_the_chosen_agents(run):
    await run.add(spoken(1.0))

    rows, _ = await export(run, format="openai")

    assert rows == [
        {
            "messages": [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": "hé\ud800llo", "weight": 1},
            ]
        }
    ]


async def test_every_attempt_is_exported_or_counted(run):
    await run.add(spoken(1.0))
    await run.add(spoken(0.25))
    await run.add(spoken())
    await run.add(spoken(1.0), failure=FAILURE)
    await run.add(spoken(1.0), mode="val")
    broken = spoken(1.0)
    broken.call("writer", [1], [])
    await run.add(broken)
    quiet = ScriptedAttempt()
    quiet.call("planner", [9], [8], trainable=False, policy="frozen")
    quiet.reward(1.0)
    await run.add(quiet)
    await run.add(spoken(1.0), finish=False)
    gone = await run.add(spoken(1.0))
    await run.store.prune([gone])

    rows, summary = await export(run, min_reward=0.5)

    assert [row["task_id"] for row in rows] == ["t1"]
    assert summary.left_out == {
        "below_min_reward": 1,
        "reward_error": 1,
        "failed": 1,
        "capture_error": 1,
        "no_calls_of_these_agents": 1,
        "running": 1,
        "spans_deleted": 1,
    }
    assert summary.attempts + sum(summary.left_out.values()) == 8
    assert any("No reward arrived" in problem for problem in summary.problems)
    assert any("ended its answer before the first token" in problem for problem in summary.problems)


async def test_failed_attempts_are_taken_on_request_and_without_their_rewards(run):
    await run.add(spoken(1.0), failure=FAILURE)

    (row,), summary = await export(run, failed="include")
    none, below = await export(run, failed="include", min_reward=-1.0)

    assert (row["status"], row["reward"], row["score"]) == ("failed", None, None)
    assert summary.lost == {"rewards_of_failed_attempts": 1}
    assert none == []
    assert below.left_out == {"below_min_reward": 1}


async def test_held_out_rollouts_are_exported_on_request_also_those_sampled_greedily(run):
    greedy = spoken(1.0)
    (span,) = [s for s in greedy.spans if s.call is not None and s.call.agent == "writer"]
    sampling = msgspec.structs.replace(span.call.sampling, temperature=0.0)
    call = msgspec.structs.replace(span.call, sampling=sampling)
    greedy.spans = [msgspec.structs.replace(s, call=call) if s is span else s for s in greedy.spans]
    greedy.call("writer", [1], [], choices=[])
    await run.add(greedy, mode="val")
    await run.add(spoken(1.0))

    rows, summary = await export(run, modes=("val", "test"))

    assert [(row["mode"], row["calls"][0]["temperature"]) for row in rows] == [("val", 0.0)]
    assert summary.lost == {"calls_without_tokens": 1}


async def test_agents_are_chosen_by_name_or_glob_and_misspelt_ones_are_an_error(run):
    await run.add(spoken(1.0, agent="writer_a"))
    await run.add(spoken(1.0, agent="writer_b"))

    config = CONFIG.model_copy(update={"agents": ["writer_*"]})
    both, _ = await export(run, config)
    one, _ = await export(run, config, agents=("writer_b",))

    assert [row["agent"] for row in both] == ["writer_a", "writer_b"]
    assert [row["agent"] for row in one] == ["writer_b"]
    with pytest.raises(ConfigError, match="did you mean 'writer_b'"):
        await export(run, config, agents=("writer_bb",))


async def test_calls_of_an_agent_that_is_not_trained_are_counted(run):
    await run.add(spoken(1.0))

    rows, summary = await export(run, agents=("planner",))

    assert rows == []
    assert summary.left_out == {"no_calls_of_these_agents": 1}
    assert summary.lost["calls_untrainable"] == 1


async def test_without_a_configuration_the_records_say_what_was_trained(run):
    await run.add(spoken(1.0))

    rows, _ = await export(run, config=None)

    assert [row["agent"] for row in rows] == ["writer"]


async def test_channels_weigh_as_in_the_run(run):
    script = spoken(1.0)
    script.reward(1.0, channel="style", agent="writer")
    await run.add(script)

    config = CONFIG.model_copy(update={"channel_weights": {"style": -3.0}})
    (row,), _ = await export(run, config)

    assert (row["reward"], row["score"]) == (-2.0, -2.0)


@pytest.mark.parametrize("failure", [None, FAILURE])
async def test_a_row_has_every_reward_with_its_reason(run, failure):
    script = spoken()
    script.reward(0.25, why="no price \ud800")
    script.reward(1.0, channel="style", agent="writer")
    await run.add(script, failure=failure)

    (row,), _ = await export(run, failed="include")

    given = [
        (r.channel, r.value, r.why, r.agent) for r in msgspec.convert(row, TrajectoryRow).rewards
    ]
    scored = [("main", 0.25, "no price \ud800", None), ("style", 1.0, "", "writer")]
    assert given == ([] if failure else scored)
    del row["rewards"]
    assert msgspec.convert(row, TrajectoryRow).rewards == []  # written before there were any


async def test_choices_that_nothing_tells_apart_are_no_examples_but_counted(run):
    script = ScriptedAttempt()
    script.call("writer", [1], [2], [3])
    script.reward(1.0)
    await run.add(script)

    rows, summary = await export(run, format="openai")
    every, _ = await export(run)

    assert rows == []
    assert summary.left_out == {"choices_unused": 1}
    assert summary.lost["choices_unused"] == 2
    assert len(every) == 2


ORPHAN = "first this </think> answer"


async def test_thinking_that_the_prompt_opened_is_no_example(run):
    """B6: rendered again, an orphan closing tag is another conversation."""
    await run.add(spoken(1.0, text=ORPHAN))
    await run.add(spoken(1.0, text="<think>first this</think> answer"))
    await run.add(spoken(1.0, text="answer"))

    rows, summary = await export(run, format="openai")
    every, _ = await export(run)

    assert [row["messages"][-1]["content"] for row in rows] == [
        "<think>first this</think> answer",
        "answer",
    ]
    assert summary.left_out == {"rendered_otherwise": 1}
    assert summary.lost["rendered_otherwise"] == 1
    assert summary.unverified == 2, "there is no tokenizer of model 'm'"
    assert len(every) == 3


@pytest.fixture
def rendered(monkeypatch):
    """What the engine's chat template makes of a conversation, by its last message."""
    ids = {}

    class Rendering(Engine):
        @staticmethod
        def renderer(model):
            assert model == "m"

            def render(messages, tools):
                del tools
                found = ids[messages[-1]["content"]]
                if found is None:
                    raise ValueError("refused")
                return found

            return render

    monkeypatch.setattr("agl_core.plugins.registry.Registry.resolve", resolving(Rendering))
    return ids


def resolving(engine):
    original = Registry.resolve
    return lambda self, name: engine if self.kind == "engines" else original(self, name)


@pytest.mark.parametrize(
    ("ids", "finish", "kept"),
    [
        ([1, 2, 3], "stop", True),
        ([1, 2, 3, 99], "stop", True),
        ([1, 2, 3, 98, 99], "stop", False),
        ([1, 2, 3, 99], "length", False),
        ([1, 2, 4], "stop", False),
        ([1, 2], "stop", False),
        (None, "stop", False),
    ],
)
async def test_a_row_whose_rendering_is_not_the_recorded_one_is_left_out(
    run, rendered, ids, finish, kept
):
    """B6: re-rendering equals the recorded ids, or the row is counted."""
    rendered["said"] = ids
    script = spoken(1.0, text="said")
    script.spans = [
        replace(span, call=replace(span.call, choices=[replace(c, finish_reason=finish)]))
        if span.call is not None and (c := span.call.choices[0]).text == "said"
        else span
        for span in script.spans
    ]
    await run.add(script)

    rows, summary = await export(run, format="openai")

    assert len(rows) == int(kept)
    assert summary.left_out == ({} if kept else {"rendered_otherwise": 1})
    assert summary.unverified == 0


async def test_only_one_runs_rollouts(run):
    await run.add(spoken(1.0))

    assert (await export(run, run_id="other"))[0] == []
    assert len((await export(run, run_id="run"))[0]) == 1


async def test_a_report_a_directory_and_a_file_are_exported_from_plain_code(run, tmp_path):
    await run.add(spoken(1.0))
    report = Report(run_id="run", directory=str(run.directory))
    output = tmp_path / "x" / "sft.jsonl"

    for target in (report, run.directory, str(run.directory / "store.db")):
        summary = agl_records.export_rollouts(target, output, format="openai", min_reward=1.0)

        assert (summary.rows, summary.output) == (1, str(output))
        assert len(output.read_text().splitlines()) == 1
        output.unlink()


async def test_a_failed_export_leaves_the_old_file(run, tmp_path):
    await run.add(spoken(1.0))
    output = tmp_path / "out.jsonl"
    output.write_text("old")

    with pytest.raises(ConfigError, match="'critic' was not seen"):
        agl_records.export_rollouts(run.directory, output, agents=["critic"])

    assert output.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["out.jsonl"]


async def test_parquet_without_its_library_names_the_pip_line(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(MissingExtraError, match=rf"pyarrow>=.*{re.escape(pip_line('parquet'))}"):
        agl_records.export_rollouts(run.directory, tmp_path / "x.parquet", format="parquet")


async def test_the_command_writes_rows_and_tells_the_rest_apart(agl, run):
    await run.add(spoken(1.0))
    await run.add(spoken(1.0), failure=FAILURE)
    await run.add(spoken())
    command = ("rollouts", "export", run.directory, "--format", "openai", "--agent", "writer")

    piped = await asyncio.to_thread(agl, *command)
    written = await asyncio.to_thread(agl, *command, "--output", "sft.jsonl")

    assert piped.exit_code == 0, piped.stderr
    assert [len(json.loads(line)["messages"]) for line in piped.stdout.splitlines()] == [2]
    assert "1 rows of 1 attempts" in piped.stderr
    assert "attempts left out: failed 1, reward_error 1" in piped.stderr
    assert "No reward arrived" in piped.stderr
    assert written.stdout == ""
    assert "in sft.jsonl" in written.stderr


async def test_parquet_goes_to_a_file_only(agl, run):
    result = await asyncio.to_thread(
        agl, "rollouts", "export", run.directory, "--format", "parquet"
    )

    assert result.exit_code == 2
    assert "--output FILE" in result.stderr
