import json
import re

import msgspec
import pytest
from agl_reading import agent_totals, merge_calls
from agl_records.commands._tree import token_counts
from agl_testing.attempts import CallOptions, ScriptedAttempt

from agl_core import semconv
from agl_core.config import RunConfig
from agl_core.config.loader import save_config
from agl_core.store._sqlite import SqliteStore
from agl_core.types import (
    AttemptStatus,
    Failure,
    FailureKind,
    Rollout,
    SpanKind,
    Task,
)
from tests.plugins.records.stored import in_thread, scripted, store_run


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "agl_runs" / "run"


async def test_a_rollout_is_a_tree_by_agent_with_rewards_and_tokens(agl, run_dir):
    await store_run(run_dir, scripted())

    result = await in_thread(agl, "trace", run_dir)

    assert result.exit_code == 0, result.stderr
    text = result.stdout
    assert "rollout ro_0 task task-0, train, step 4, succeeded" in text
    assert "attempt 1 succeeded, main +1.500, style +0.250" in text
    lines = [line.strip("│├└─ ") for line in text.splitlines()]
    depth = {
        line.strip("│├└─ "): len(line) - len(line.lstrip("│├└─ ")) for line in text.splitlines()
    }
    planner = next(line for line in lines if line.startswith("agent planner"))
    planner_call = next(line for line in lines if line.startswith("llm planner 3+1 tokens"))
    tool = next(line for line in lines if line.startswith("tool lookup"))
    writer_call = next(line for line in lines if line.startswith("llm writer 2+2 tokens, stop"))
    assert depth[planner] < depth[planner_call] == depth[tool]
    assert depth[writer_call] == depth[planner]
    assert '{"price": 3}' in tool
    assert any(line.startswith("reward style +0.250 for call") for line in lines)
    assert "reward main +1.000 for agent planner" in lines
    assert "agent planner: 1 calls, 3+1 tokens, reward +1.000" in lines
    assert "agent writer: 1 calls, 2+2 tokens, reward +0.250" in lines


async def test_a_reward_shows_its_reason_and_the_whole_of_it_with_messages(agl, run_dir):
    script = ScriptedAttempt()
    long = "the price is missing, " + "and so on " * 20 + "\x1b[2J\nto the end"
    script.reward(0.25, why="the unit is missing")
    script.reward(0.5, channel="style", why=long)
    script.reward(1.0, channel="length")
    await store_run(run_dir, script)

    lines = (await in_thread(agl, "trace", run_dir)).stdout
    whole = (await in_thread(agl, "trace", run_dir, "--messages")).stdout
    (data,) = json.loads((await in_thread(agl, "trace", run_dir, "--json", "-")).stdout)

    assert "reward main +0.250 for attempt: the unit is missing" in lines
    assert "reward style +0.500 for attempt: the price is missing, and so on" in lines
    assert re.search(r"length \+1\.000 for attempt$", lines, re.MULTILINE)
    assert "to the end" not in lines
    assert "to the end" in whole
    assert "why: the price is missing" in whole
    assert "\x1b" not in lines + whole
    reasons = [span["reward"]["why"] for span in data["spans"] if span["reward"]]
    assert reasons == ["the unit is missing", long, ""]


async def test_the_newest_rollouts_are_shown(agl, run_dir):
    await store_run(run_dir, ScriptedAttempt(), count=7)

    newest = (await in_thread(agl, "trace", run_dir)).stdout
    everything = (await in_thread(agl, "trace", run_dir, "--limit", "0")).stdout
    one = (await in_thread(agl, "trace", run_dir, "--rollout", "ro_1")).stdout

    assert [number for number in range(7) if f"rollout ro_{number} " in newest] == [2, 3, 4, 5, 6]
    assert "5 of 7 rollouts; --limit 0 shows all" in newest
    assert all(f"rollout ro_{number} " in everything for number in range(7))
    assert "rollouts;" not in everything
    assert "rollout ro_1 " in one
    assert "rollout ro_2 " not in one


async def test_a_failed_attempt_says_why(agl, run_dir):
    failure = Failure(kind=FailureKind.AGENT, message="it\nbroke [red]")

    await store_run(run_dir, ScriptedAttempt(), failure=failure)

    assert (
        "attempt 1 failed, agent: it broke [red]" in (await in_thread(agl, "trace", run_dir)).stdout
    )


async def test_only_rollouts_with_a_failure_are_shown(agl, run_dir):
    await store_run(run_dir, ScriptedAttempt(), count=2)
    failure = Failure(kind=FailureKind.AGENT, message="broke")
    await store_run(run_dir, ScriptedAttempt(), failure=failure, first=2)

    failed = (await in_thread(agl, "trace", run_dir, "--failed")).stdout
    one = (await in_thread(agl, "trace", run_dir, "--failed", "--rollout", "ro_0")).stdout

    assert [n for n in range(3) if f"rollout ro_{n} " in failed] == [2]
    assert "rollout ro_0 " in one


async def test_only_what_an_agent_did_is_shown(agl, run_dir):
    await store_run(run_dir, scripted(), count=3)
    other = ScriptedAttempt()
    other.call("judge", [1], [2])
    await store_run(run_dir, other, first=3)

    planner = (await in_thread(agl, "trace", run_dir, "--agent", "plan*", "--limit", "2")).stdout
    nobody = await in_thread(agl, "trace", run_dir, "--agent", "critic")

    assert [n for n in range(4) if f"rollout ro_{n} " in planner] == [1, 2]
    assert "llm planner" in planner
    assert "llm writer" not in planner
    assert nobody.exit_code == 2
    assert "['judge', 'planner', 'writer']" in nobody.stderr


async def test_an_agent_is_found_by_its_name_or_its_alias(agl, run_dir):
    """G15: `agl trace --agent` takes both, and an alias is one attempt's alone."""
    for first, (alias, other) in enumerate((("wolf", "villager"), ("villager", "wolf"))):
        script = ScriptedAttempt()
        script.call("seat 1", [1], [2], alias=alias)
        script.call("seat 2", [1], [2], alias=other, options=CallOptions(traced=False))
        script.reward(1.0, agent="seat 1")
        await store_run(run_dir, script, first=first)
    early = ScriptedAttempt()
    early.agent("seat 3")
    marked = {semconv.AGL_AGENT: "seat 3", semconv.AGL_ALIAS: "seer"}
    early._keep(early._span(SpanKind.MESSAGE, semconv.AGL_ALIAS, attributes=marked))
    await store_run(run_dir, early, first=2)

    async def shown(*agents):
        chosen = [word for agent in agents for word in ("--agent", agent)]
        result = await in_thread(agl, "trace", run_dir, *chosen)
        return result.stdout or result.stderr

    wolves = await shown("wolf")
    seats = await shown("seat 1")

    assert "llm seat 1 (wolf) 1+1 tokens" in wolves
    assert "llm seat 2 (wolf) 1+1 tokens" in wolves
    assert "villager" not in wolves
    assert "agent seat 1 (wolf): 1 calls, 1+1 tokens" in wolves
    assert "llm seat 1 (wolf)" in seats
    assert "llm seat 1 (villager)" in seats
    assert "seat 2" not in seats
    assert "agent seat 3" in await shown("se?r")
    assert "['seat 1', 'seat 2', 'seat 3', 'seer', 'villager', 'wolf']" in await shown("witch")
    assert (
        "agent seat 2 (villager): 1 calls"
        in (await in_thread(agl, "store", "show", run_dir, "ro_0")).stdout
    )


async def test_a_running_run_is_shown_and_goes_on(agl, run_dir):
    run_dir.mkdir(parents=True)
    save_config(RunConfig(), run_dir)
    store = SqliteStore(run_dir / "store.db")
    await store.open()
    await store.enqueue([Rollout(id="ro_live", task=Task(id="t"), run_id="run")])
    (claim,) = await store.claim("worker")

    text = (await in_thread(agl, "trace", run_dir)).stdout

    assert "rollout ro_live task t, train, step 0, running" in text
    assert "attempt 1 running" in text
    await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED)
    await store.close()


async def test_what_is_shown_is_also_data(agl, run_dir):
    await store_run(run_dir, scripted())

    found = json.loads((await in_thread(agl, "trace", run_dir, "--json", "-")).stdout)

    assert [entry["rollout"]["id"] for entry in found] == ["ro_0"]
    assert {span["kind"] for span in found[0]["spans"]} == {"agent", "llm", "tool", "reward"}


async def test_a_run_without_rollouts_says_so(agl, run_dir):
    await store_run(run_dir, scripted(), count=0)

    assert "no rollouts" in (await in_thread(agl, "trace", run_dir)).stdout


async def test_dropped_spans_are_said_to_be_dropped(agl, run_dir):
    config = RunConfig.model_validate({"store": {"retention": "drop_spans"}})

    await store_run(run_dir, scripted(), consumed=True, config=config)

    assert "spans dropped after training" in (await in_thread(agl, "trace", run_dir)).stdout


async def test_an_unknown_rollout_is_an_error(agl, run_dir):
    await store_run(run_dir, ScriptedAttempt())

    result = await in_thread(agl, "trace", run_dir, "--rollout", "ro_x")

    assert result.exit_code == 2
    assert "no rollout 'ro_x'" in result.stderr


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "is not a run's directory"),
        (RunConfig(), "has no store"),
        (RunConfig.model_validate({"store": {"name": "memory"}}), "in memory"),
    ],
)
def test_a_directory_without_records_is_an_error(agl, tmp_path, config, reason):
    if config is not None:
        save_config(config, tmp_path)

    result = agl("trace", tmp_path)

    assert result.exit_code == 2
    assert reason in result.stderr
    assert not (tmp_path / "store.db").exists()


def test_both_recorders_make_one_span_per_call():
    script = ScriptedAttempt()
    joined = script.call("writer", [1, 2], [3])
    only_traced = script.call("writer", [1], [2], options=CallOptions(captured=False))
    only_seen = script.call("judge", [1], [2, 3], options=CallOptions(traced=False))

    merged = merge_calls(script.spans)

    assert [span.call_id for span in merged] == [joined, only_traced, only_seen]
    assert merged[0].call.prompt_token_ids.tolist() == [1, 2]
    assert merged[1].call is None
    assert {name: total.sampled_tokens for name, total in agent_totals(merged).items()} == {
        "writer": 1,
        "judge": 2,
    }


def test_superseded_tries_are_shown_apart_and_not_counted():
    script = ScriptedAttempt()
    call = script.call("writer", [1], [2])
    record = next(span.call for span in script.spans if span.call is not None)
    script.gateway_span(msgspec.structs.replace(record, superseded=True, choices=[]))

    merged = merge_calls(script.spans)

    assert [(span.call_id, span.call.superseded) for span in merged] == [
        (call, False),
        (call, True),
    ]
    assert agent_totals(merged)["writer"].calls == 1


def test_rewards_of_runs_belong_to_their_agent():
    script = ScriptedAttempt()
    script.agent("writer", run="run-1")
    script.reward(2.0, agent_run="run-1")

    assert agent_totals(merge_calls(script.spans))["writer"].reward == 2.0


async def test_spans_in_a_circle_are_shown_nevertheless(agl, run_dir):
    script = ScriptedAttempt()
    first, second = script.agent("first"), script.agent("second")
    script.spans = [
        msgspec.structs.replace(first, parent_id=second.id),
        msgspec.structs.replace(second, parent_id=first.id),
    ]
    await store_run(run_dir, script)

    text = (await in_thread(agl, "trace", run_dir)).stdout

    assert text.count("agent first ") == 1
    assert text.count("agent second ") == 1


async def test_calls_and_errors_read_plainly(agl, run_dir):
    script = ScriptedAttempt()
    script.call("writer", [1], [2], complete=False, error="boom", status_code=500)
    script.call("writer", [1], options=CallOptions(captured=False))
    script.capture_error("token ids are missing")
    tools = [{"id": "1", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}]
    record = next(span.call for span in script.spans if span.call is not None)
    choice = msgspec.structs.replace(record.choices[0], tool_calls=tools)
    script.call("planner", [1], choices=[choice])
    text_choice = msgspec.structs.replace(record.choices[0], text="many words " * 20)
    script.call("talker", [1], choices=[text_choice])
    await store_run(run_dir, script)

    text = (await in_thread(agl, "trace", run_dir)).stdout

    assert "incomplete, 500 boom" in text
    assert "(not seen by the gateway)" in text
    assert "error: token ids are missing" in text
    assert "-> lookup" in text
    assert '"many words' in text


def test_tokens_that_were_not_recorded_are_not_shown_as_none():
    assert token_counts(3, 1) == "3+1 tokens"
    assert token_counts(0, 0) == "tokens not recorded"
