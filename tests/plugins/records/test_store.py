"""``agl store`` on real files, while nobody or somebody else holds them."""

from __future__ import annotations

import asyncio
import json

import click
import pytest
from agl_records.commands._selection import seconds
from agl_records.jsonl import read_export
from agl_remote import StoreServer
from agl_testing._store_samples import begin, failure, model_call, rollout, span, succeed
from agl_testing.attempts import ScriptedAttempt

from agl_core._builtin import load_plugins
from agl_core.config import RunConfig
from agl_core.config.loader import save_config
from agl_core.errors import ConfigError
from agl_core.store._sqlite import SqliteStore
from agl_core.types import (
    AttemptStatus,
    Choice,
    FailureKind,
    ModelCall,
    Reward,
    Rollout,
    RolloutQuery,
    Sampling,
    Span,
    SpanKind,
    Task,
)
from agl_core.types.json_text import json_value
from tests.plugins.records.stored import store_run


async def in_thread(agl, *arguments):
    """The command runs a loop of its own."""
    return await asyncio.to_thread(agl, *arguments)


@pytest.fixture
async def run(tmp_path):
    """A run that goes on: five rollouts, of which one runs and one is queued."""
    directory = tmp_path / "agl_runs" / "run"
    directory.mkdir(parents=True)
    save_config(RunConfig(), directory)
    store = SqliteStore(directory / "store.db")
    await store.open()
    task = Task(id="t-\ud800", input="2+2 [b]?", expected="4")
    good = await begin(store, task=task, group_id="g", step=3)
    reward = Reward(value=0.5, source="judge", why="no unit, [b]\nno price \x1b[2J")
    await succeed(
        store,
        good,
        [model_call(good), span(good, kind=SpanKind.REWARD, name="reward", reward=reward)],
    )
    used = await begin(store)
    await succeed(store, used, [model_call(used)])
    await store.consume([used.rollout.id])
    bad = await begin(store, mode="val")
    await store.finish(
        bad.attempt.id,
        status=AttemptStatus.FAILED,
        failure=failure(FailureKind.AGENT),
        spans=[span(bad, status="error", error="it broke")],
    )
    running = await begin(store, run_id="other")
    await store.add_spans([span(running)])
    (queued,) = await store.enqueue([rollout()])
    ids = [good.rollout.id, used.rollout.id, bad.rollout.id, running.rollout.id, queued.id]
    yield directory, store, ids
    await store.close()


def listed(result, ids):
    assert result.exit_code == 0, result.stderr
    return [
        number for number, one in enumerate(ids) if one in result.stdout.split("before them")[0]
    ]


async def test_rollouts_are_listed_counted_and_filtered(agl, run):
    directory, _, ids = run

    everything = await in_thread(agl, "store", "ls", directory)
    assert listed(everything, ids) == [0, 1, 2, 3, 4]
    assert "5 rollouts: 1 failed, 1 queued, 1 running, 2 succeeded" in everything.stdout
    assert "agent: A failure of kind agent" in everything.stdout

    status = await in_thread(
        agl, "store", "ls", directory, "--status", "failed", "--status", "queued"
    )
    assert listed(status, ids) == [2, 4]
    assert "5 rollouts: 1 failed" in status.stdout
    assert listed(await in_thread(agl, "store", "ls", directory, "--mode", "val"), ids) == [2]
    assert listed(await in_thread(agl, "store", "ls", directory, "--run", "other"), ids) == [3]
    assert listed(await in_thread(agl, "store", "ls", directory, "--group", "g"), ids) == [0]
    nobody = await in_thread(agl, "store", "ls", directory, "--group", "x")
    assert nobody.stdout.strip() == "no rollouts match"


async def test_rewards_are_listed_by_channel(agl, tmp_path):
    """G9: what each rollout earned stands in its row, and in the data."""
    directory = tmp_path / "run"
    both, one, nothing = ScriptedAttempt(), ScriptedAttempt(), ScriptedAttempt()
    both.reward(0.5)
    both.reward(0.25, agent="writer")
    both.reward(-1.0, channel="style")
    one.reward(1)
    for number, script in enumerate((both, one, nothing)):
        await store_run(directory, script, first=number)

    table = await in_thread(agl, "store", "ls", directory)
    data = await in_thread(agl, "store", "ls", directory, "--json", "-")

    head, *rows = table.stdout.splitlines()
    assert "reward" in head
    assert "main +0.750, style -1.000" in rows[0]
    assert "+1.000" in rows[1]
    assert "main" not in rows[1]
    assert "+" not in rows[2]
    assert json_value(data.stdout)["rewards"] == {
        "ro_0": {"main": 0.75, "style": -1.0},
        "ro_1": {"main": 1.0},
    }


async def test_pages_go_back_in_time(agl, run):
    directory, _, ids = run

    newest = await in_thread(agl, "store", "ls", directory, "--limit", 2)
    assert listed(newest, ids) == [3, 4]
    assert f"2 of 5 shown; before them: --before {ids[3]}" in newest.stdout
    earlier = await in_thread(agl, "store", "ls", directory, "--limit", 2, "--before", ids[3])
    assert listed(earlier, ids) == [1, 2]
    unknown = await in_thread(agl, "store", "ls", directory, "--before", "nope")
    assert unknown.exit_code == 2
    assert "There is no rollout 'nope'" in unknown.output


async def test_a_listing_is_also_data(agl, run):
    directory, _, ids = run

    result = await in_thread(agl, "store", "ls", directory, "--limit", 0, "--json", "-")

    found = json_value(result.stdout)
    assert [one["id"] for one in found["rollouts"]] == ids
    assert found["rollouts"][0]["task"]["id"] == "t-\ud800"
    assert found["counts"] == {"succeeded": 2, "failed": 1, "running": 1, "queued": 1}


async def test_a_database_file_and_a_configuration_are_taken_too(agl, run, tmp_path):
    directory, _, ids = run
    (tmp_path / "run.toml").write_text('name = "run"\n')

    for target in (directory / "store.db", directory / "config.json", "run.toml"):
        assert listed(await in_thread(agl, "store", "ls", target), ids) == [0, 1, 2, 3, 4]


async def test_looking_at_a_crashed_run_leaves_it_as_it_is(agl, run):
    directory, store, ids = run
    await store.close()

    for arguments in (("ls", directory), ("show", directory, ids[3]), ("gc", directory)):
        assert (await in_thread(agl, "store", *arguments)).exit_code == 0
    assert (await in_thread(agl, "trace", directory)).exit_code == 0

    reader = store.reader()
    await reader.open()
    (left,) = await reader.rollouts(RolloutQuery(ids=(ids[3],)))
    await reader.close()
    assert left.status == "running"


async def test_one_rollout_is_shown_whole(agl, run):
    directory, _, ids = run

    good = (await in_thread(agl, "store", "show", directory, ids[0])).stdout
    assert "run, train, step 3" in good
    assert "input     2+2 [b]?" in good
    assert "expected  4" in good
    assert "reward main +0.500 for attempt by judge" in good
    assert "\n    no unit, [b]\n    no price \\x1b[2J\n" in good
    assert "agent writer: 1 calls, 3+2 tokens" in good
    assert "spans: 1 llm, 1 reward" in good

    bad = (await in_thread(agl, "store", "show", directory, ids[2])).stdout
    assert "failure agent: A failure of kind agent" in bad
    assert "error in message note: it broke" in bad

    unknown = await in_thread(agl, "store", "show", directory, "ro_x")
    assert unknown.exit_code == 2
    assert "no rollout 'ro_x'" in unknown.stderr


async def test_everything_of_one_rollout_is_there_as_data(agl, run):
    directory, _, ids = run

    result = await in_thread(agl, "store", "show", directory, ids[0], "--json", "-")

    found = json.loads(result.stdout)
    assert found["rollout"]["id"] == ids[0]
    check_fields(found["spans"][0])
    assert found["spans"][0]["call"]["prompt_token_ids"] == [1, 2, 3]


def check_fields(shown):
    """Check that a span with a call has all fields, those of default values too."""
    call = shown["call"]
    for part, kind in (
        (shown, Span),
        (call, ModelCall),
        (call["sampling"], Sampling),
        (call["choices"][0], Choice),
    ):
        assert tuple(part) == kind.__struct_fields__


async def remaining(store, ids):
    spans = await store.spans(ids)
    return [number for number, one in enumerate(ids) if any(s.rollout_id == one for s in spans)]


async def test_spans_of_consumed_rollouts_are_deleted_and_of_no_others(agl, run):
    directory, store, ids = run

    dry = await in_thread(agl, "store", "gc", directory, "--dry-run")
    assert "would delete 1 spans" in dry.stdout
    assert await remaining(store, ids) == [0, 1, 2, 3]

    done = await in_thread(agl, "store", "gc", directory)
    assert "deleted 1 spans" in done.stdout
    assert "of 1 rollouts" in done.stdout
    assert "the file went from" in done.stdout
    assert await remaining(store, ids) == [0, 2, 3]
    shown = (await in_thread(agl, "store", "show", directory, ids[1])).stdout
    assert "spans deleted since" in shown


async def test_age_counts_from_the_end_and_spares_what_is_not_final(agl, run):
    directory, store, ids = run

    young = await in_thread(agl, "store", "gc", directory, "--older-than", "1h")
    assert "deleted 0 spans" in young.stdout
    both = await in_thread(agl, "store", "gc", directory, "--older-than", "0s", "--consumed")
    assert "deleted 1 spans" in both.stdout
    old = await in_thread(agl, "store", "gc", directory, "--older-than", "0s", "--json", "-")
    assert json.loads(old.stdout)["spans"] == 3
    assert await remaining(store, ids) == [3]

    wrong = await in_thread(agl, "store", "gc", directory, "--older-than", "soon")
    assert wrong.exit_code == 2
    assert "'soon'" in wrong.stderr


def test_ages_are_written_with_their_unit():
    assert [seconds(text) for text in ("90s", "1.5m", "2h", "7d", "1 w")] == [
        90,
        90,
        7200,
        604_800,
        604_800,
    ]
    for wrong in ("7", "d", "-1d", "1y"):
        with pytest.raises(ConfigError):
            seconds(wrong)


async def test_an_export_has_everything(agl, run, tmp_path):
    directory, store, ids = run

    to_file = await in_thread(agl, "store", "export", directory, "--output", "x/all.jsonl")
    to_pipe = await in_thread(agl, "store", "export", directory)

    assert "10 records in x/all.jsonl" in to_file.stdout
    text = (tmp_path / "x" / "all.jsonl").read_text()
    assert to_pipe.stdout == text
    records = list(read_export(text.splitlines()))
    assert [one for one in records if isinstance(one, Rollout)] == await store.rollouts(
        RolloutQuery()
    )
    assert [one for one in records if isinstance(one, Span)] == await store.spans(ids)
    lines = map(json.loads, text.splitlines())
    spans = [line["record"] for line in lines if line["kind"] == "span"]
    check_fields(next(span for span in spans if span["call"]))
    assert [file.name for file in (tmp_path / "x").iterdir()] == ["all.jsonl"]


async def test_a_part_is_exported(agl, run):
    directory, _, ids = run

    result = await in_thread(agl, "store", "export", directory, "--mode", "val")

    records = list(read_export(result.stdout.splitlines()))
    assert [one.id for one in records if isinstance(one, Rollout)] == [ids[2]]


async def test_a_file_that_cannot_be_written_is_an_error(agl, run, tmp_path):
    (tmp_path / "file").touch()

    result = await in_thread(agl, "store", "export", run[0], "--output", "file/x.jsonl")

    assert result.exit_code == 2
    assert "'file/x.jsonl' cannot be written" in result.stderr


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nowhere", "no such file or directory exists"),
        (".", "is not a run's directory"),
        ("nowhere.toml", "nowhere.toml"),
        ("empty.db", "is no store"),
    ],
)
def test_what_is_no_store_is_an_error(agl, tmp_path, target, reason):
    (tmp_path / "empty.db").touch()

    result = agl("store", "ls", target)

    assert result.exit_code in (1, 2)
    assert reason in result.stderr


def test_subcommands_are_listed_without_being_imported(agl):
    result = agl("store", "--help")

    assert result.exit_code == 0
    commands = load_plugins().registry("commands")
    names = [name for name in commands.names() if name.startswith("store.")]
    assert {"store.ls", "store.serve"} <= set(names)
    for name in names:
        assert name.removeprefix("store.") in result.stdout
        assert commands.get(name).summary in result.stdout
        assert isinstance(commands.resolve(name), click.Command)
    assert agl("store", "nonsense").exit_code == 2


async def test_a_store_that_is_served_is_looked_at_by_its_address(agl, tmp_path, monkeypatch):
    monkeypatch.setenv("AGL_API_KEY", "key")
    store = SqliteStore(tmp_path / "store.db")
    server = StoreServer(store, key="key")
    await server.start()
    claim = await begin(store)
    await succeed(store, claim, [model_call(claim)])
    try:
        ls = await in_thread(agl, "store", "ls", server.url)
        show = await in_thread(agl, "store", "show", server.url, claim.rollout.id)
        export = await in_thread(agl, "store", "export", server.url)
        trace = await in_thread(agl, "trace", server.url)
        young = await in_thread(agl, "store", "gc", server.url, "--older-than", "1h")
        dry = await in_thread(agl, "store", "gc", server.url, "--older-than", "0s", "--dry-run")
        kept = await remaining(store, [claim.rollout.id])
        gc = await in_thread(agl, "store", "gc", server.url, "--older-than", "0s")
        left = await remaining(store, [claim.rollout.id])
    finally:
        await server.stop()

    assert listed(ls, [claim.rollout.id]) == [0]
    assert "agent writer: 1 calls" in show.stdout
    assert len(list(read_export(export.stdout.splitlines()))) == 2
    assert "llm writer 3+2 tokens" in trace.stdout
    assert "deleted 0 spans" in young.stdout
    assert "would delete 1 spans" in dry.stdout
    assert kept == [0]
    assert "deleted 1 spans" in gc.stdout
    assert "the file went" not in gc.stdout
    assert left == []
