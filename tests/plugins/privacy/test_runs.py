"""Whole runs: what is trained on, stored, published, exported and logged."""

import asyncio
import io
import json
import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import agl_records
import pytest
from agl_privacy import Masker, MaskOptions
from agl_privacy import _masker as masking_of_texts
from click.testing import CliRunner

import agl_core as agl
from agl_core.cli.group import cli
from agl_core.errors import ConfigError, TrainingError
from agl_core.plugins import hookimpl
from agl_core.types import Batch
from tests.core.app.conftest import Bench, ask, speak
from tests.plugins.events import memory_bus
from tests.plugins.events.memory_bus import SERVERS, server_of
from tests.plugins.privacy.planted import ITEMS, NAMES, SECTION, five, found_below, found_in

FILTERED = "calls_filtered_personal_data"


class Batches:
    """Keeps the batches of a run, whose prompt tokens are the bytes of their text."""

    def __init__(self) -> None:
        self.all: list[Batch] = []

    @hookimpl
    def agl_batch_built(self, batch: Batch, step: int) -> None:
        self.all.append(batch)

    @property
    def text(self) -> str:
        return "".join(
            bytes(token for token in batch.tokens if 0 <= token < 256).decode(errors="replace")
            for batch in self.all
        )


def watched(bench: Bench) -> Batches:
    batches = Batches()
    bench.plugins = [batches, memory_bus]
    return batches


async def clean_then_personal(task: agl.Task) -> str:
    """A call without personal data, and one with it that repeats the first one's prompt."""
    first = await speak("writer", "a clean question")
    with agl.agent_scope("writer"):
        await ask(
            [
                {"role": "user", "content": "a clean question"},
                {"role": "assistant", "content": first},
                {"role": "user", "content": five(int(task.input))},
            ]
        )
    return first


def test_calls_with_personal_data_are_left_out_and_the_reward_stays(bench: Bench) -> None:
    batches = watched(bench)
    bench.sections["privacy"] = SECTION
    report = bench.train({"agent": clean_then_personal})
    assert report.lost[FILTERED] == 16
    assert [step.lost[FILTERED] for step in report.steps] == [8, 8]
    assert found_in(batches.text) == []
    assert "a clean question" in batches.text
    assert [len(batch.call_ids) for batch in batches.all] == [8, 8]
    rewards = {float(advantage) for batch in batches.all for advantage in batch.advantages}
    assert rewards <= {0.0, 1.0}
    assert report.steps[0].reward == pytest.approx(
        sum(batches.all[0].advantages) / len(batches.all[0].advantages)
    )


@pytest.mark.parametrize(
    ("policy", "lost"), [("count", {"calls_with_personal_data": 16}), ("off", {})]
)
def test_the_policy_may_be_to_count_or_not_to_look(
    bench: Bench, policy: str, lost: dict[str, int]
) -> None:
    batches = watched(bench)
    bench.sections["privacy"] = {**SECTION, "reinforcement": policy}
    report = bench.train({"agent": clean_then_personal})
    assert {cause: n for cause, n in report.lost.items() if "personal" in cause} == lost
    assert [len(batch.call_ids) for batch in batches.all] == [16, 16]


def test_without_the_section_nothing_is_left_out(bench: Bench) -> None:
    batches = watched(bench)
    assert FILTERED not in bench.train({"agent": clean_then_personal}).lost
    assert found_in(batches.text) != []


def test_a_step_without_a_call_that_is_left_is_an_error(bench: Bench) -> None:
    async def personal(task: agl.Task) -> str:
        return await speak("writer", five(int(task.input)))

    bench.sections["privacy"] = SECTION
    with pytest.raises(TrainingError, match=r"calls_filtered_personal_data.*Filters of training"):
        bench.train({"agent": personal})


def test_a_reward_for_a_call_that_is_left_out_is_counted(bench: Bench) -> None:
    def reward(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> float:
        agl.emit_reward(0.5, call=attempt.calls[-1].id)
        return 1.0

    bench.sections["privacy"] = SECTION
    batches = watched(bench)
    report = bench.train({"agent": clean_then_personal, "reward": reward})
    assert report.lost[FILTERED] == report.lost["rewards_of_dropped_calls"] == 16
    assert {float(each) for batch in batches.all for each in batch.advantages} == {1.0}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"nmaes": []}, "nmaes"),
        ({"reinforcement": "mask"}, "privacy.reinforcement"),
        ({"names": ["x"]}, "no name"),
        ({"recognizers": ["nothing.here:find"]}, "nothing"),
    ],
)
def test_a_wrong_section_stops_the_run_at_its_start(
    bench: Bench, section: dict[str, Any], message: str
) -> None:
    bench.sections["privacy"] = section
    with pytest.raises(ConfigError, match=message):
        bench.train()


def test_stored_text_cannot_be_replayed(bench: Bench) -> None:
    bench.sections |= {"privacy": {"store": True}, "rollout": {"resume": "replay"}}
    with pytest.raises(ConfigError, match="would give the agent again"):
        bench.train()


async def says_all(task: agl.Task) -> str:
    """Personal data in messages, tools, errors, messages of the program, objects and logs."""
    number = int(task.input)
    text = five(number)
    if number % 5 == 4:
        logging.getLogger("agl_core.runner").error("lost %s", text)
        raise ValueError(text)
    agl.emit_message(text)
    agl.emit_object({"who": [text]})
    agl.emit_tool_call("look_up", {"who": text}, {"found": [text, json.dumps({"x": text})]})
    agl.emit_exception(KeyError(text))
    await speak("writer", "a clean question")
    tools = [{"type": "function", "function": {"name": "f", "description": text, "parameters": {}}}]
    with agl.agent_scope("writer"):
        await ask([{"role": "user", "content": [{"type": "text", "text": text}]}], tools=tools)
    return text


def rates(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> agl.Score:
    assert str(output) == five(int(task.input))
    assert any(five(int(task.input)) in str(call.messages) for call in attempt.calls)
    return agl.Score(1.0, f"because {output}")


@pytest.fixture
def planted(bench: Bench) -> Any:
    """Returns a run of 50 tasks that say 250 items, and what it published and logged."""

    def run(**section: Any) -> tuple[agl.Report, str, bytes, Batches]:
        SERVERS.clear()
        batches = watched(bench)
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        logging.getLogger().addHandler(handler)
        bench.sections |= {
            "privacy": {**SECTION, **section},
            "events": {"url": "memory://host", "content": True},
            "store": {"name": "sqlite"},
            "algorithm": {"name": "reinforce", "lr": 1.0, "group_size": 1},
            "train": {"steps": 2, "tasks_per_step": 25},
            "rollout": {"concurrency": 8, "timeout_s": 600.0},
        }
        inputs = {"agent": says_all, "reward": rates, "tasks": [{"input": n} for n in range(50)]}
        try:
            report = asyncio.run(bench.app(inputs).train())
        finally:
            logging.getLogger().removeHandler(handler)
        published = b"".join(message.body for message in server_of("host").taken)
        return report, stream.getvalue(), published, batches

    yield run
    SERVERS.clear()


def tokens_of(database: Path) -> bytes:
    """Compact a database, so that no page that is not used any more is left in it."""
    connection = sqlite3.connect(database)
    connection.execute("VACUUM")
    connection.close()
    return database.read_bytes()


@pytest.mark.timeout(600)
def test_nothing_of_250_items_is_where_it_may_not_be(planted: Any, tmp_path: Path) -> None:
    report, logs, published, batches = planted(store=True)
    assert (report.lost[FILTERED], len(ITEMS)) == (40, 250)
    assert found_in(logs) == []
    assert "p*********@m*****************e.org" in logs or "lost Ask V" in logs
    assert found_in(published) == []
    assert b"Ask V****" in published
    assert found_in(batches.text) == []
    directory = tmp_path / "bench"
    tokens_of(directory / "store.db")
    assert found_below(directory) == {}


@pytest.mark.timeout(600)
def test_nothing_of_250_items_is_in_masked_exports(planted: Any, tmp_path: Path) -> None:
    planted(reinforcement="off")
    directory = tmp_path / "bench"
    assert set(found_in((directory / "store.db").read_bytes())) == {*ITEMS}
    for command in (
        ["store", "export", str(directory)],
        ["rollouts", "export", str(directory), "--failed", "include"],
        ["rollouts", "export", str(directory), "--format", "openai"],
    ):
        plain, masked = (
            CliRunner().invoke(cli, [*command, *more], catch_exceptions=False)
            for more in ([], ["--mask"])
        )
        assert plain.exit_code == masked.exit_code == 0
        assert len(found_in(plain.stdout)) >= 160, command
        assert found_in(masked.stdout) == []
        assert masked.stdout.strip()
        if "store" in command:
            ids = [
                json.loads(line)["record"].get("call") for line in masked.stdout.splitlines()[1:-1]
            ]
            held = [call for call in ids if call and "***" in str(call["messages"])]
            assert held
            assert not any(call["prompt_token_ids"] for call in held)
            assert any(call["prompt_token_ids"] for call in ids if call)


@pytest.mark.timeout(600)
def test_rows_whose_tokens_say_it_are_left_out(planted: Any, tmp_path: Path) -> None:
    import agl_privacy

    planted(reinforcement="off")
    masker = agl_privacy.Masker(agl_privacy.MaskOptions(names=NAMES))
    output = tmp_path / "rows.jsonl"
    summary = agl_records.export_rollouts(tmp_path / "bench", output, cleaned=masker.value)
    assert (summary.rows, summary.lost["personal_data"]) == (40, 40)
    assert found_in(output.read_bytes()) == []
    assert b"because Ask V****" in output.read_bytes()


def test_the_recogniser_is_built_once_for_all_parts_of_a_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names, built = tmp_path / "names.txt", []
    names.write_text("Erna Pfau\n")
    make = masking_of_texts._finders

    def counting(options: Any) -> Any:
        built.append(options)
        return make(options)

    monkeypatch.setattr(masking_of_texts, "_finders", counting)
    bench.plugins = [memory_bus]
    phase = {"algorithm": "reinforce", "group_size": 2, "steps": 1}
    bench.sections |= {
        "privacy": {"names_file": str(names), "store": True},
        "events": {"url": "memory://host"},
        "phases": [phase, {**phase, "steps": 2}],
        "train": {"tasks_per_step": 2},
    }
    report = bench.train()
    assert len(report.steps) == 3
    assert [options.names_file for options in built if options.names_file] == [str(names)]


def test_a_recogniser_is_not_shared_after_its_file_changed(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("Erna Pfau\n")
    options = MaskOptions(names_file=str(names))
    first = Masker.shared(options)
    assert Masker.shared(options) is first
    names.write_text("Anna Schmidt\n")
    os.utime(names, ns=(1, 1))
    other = Masker.shared(options)
    assert other.text("Erna Pfau, Anna Schmidt") == "Erna Pfau, A**a S*****t"
