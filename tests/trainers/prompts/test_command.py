"""``agl prompts``: versions with scores, and differences."""

from __future__ import annotations

import asyncio
import json

import pytest

from agl_core.types import PromptTemplate
from tests.trainers.prompts.fakes import TEXT, prompt
from tests.trainers.prompts.runs import KIND, LONGER, WrittenRun


@pytest.fixture
def run(tmp_path):
    return WrittenRun(tmp_path / "agl_runs" / "shop")


@pytest.fixture
def tuned(run):
    asyncio.run(run.phase([(LONGER, TEXT), (KIND, LONGER)]))
    return run


def test_the_versions_of_a_run_are_a_table(agl, tuned):
    result = agl("prompts", "shop")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert "phase 0: fake, 4 validation tasks" in result.output
    assert ["1", "0.250", "[0.250,", "0.250]", "4", "before", "the", "incumbent"] in lines
    assert ["2", "0.500", "[0.500,", "0.500]", "4", "1", "writer", "from", *TEXT.split()] in lines
    assert any(line[:1] == ["3"] and "chosen" in line for line in lines)
    assert "best: version 3" in result.output
    assert "has not ended" not in result.output


def test_a_run_is_named_by_its_directory_too(agl, tuned):
    assert agl("prompts", str(tuned.directory)).output == agl("prompts", "shop").output


def test_what_changed_is_shown_word_by_word(agl, tuned):
    said = agl("prompts", "shop", "writer").output
    assert "writer, version 1 to 3:\n[-Answer-]{+Kindly answer+} {question}[- briefly-]." in said
    said = agl("prompts", "shop", "--diff", "2", "before").output
    assert "writer, version 2 to 1:\nAnswer {question} [-in one sentence-]{+briefly+}." in said
    assert "validation" not in said
    assert "(the texts are equal)" in agl("prompts", "shop", "--diff", "3", "best").output


def test_json_has_everything(agl, tuned):
    result = agl("prompts", "shop", "--json", "-")
    found = json.loads(result.output)
    assert [texts["writer"] for texts in found["versions"]] == [TEXT, LONGER, KIND]
    assert found["best"] == 3
    (phase,) = found["phases"]
    assert phase["entries"][2] == {
        "version": 3,
        "parent": 2,
        "why": f"from {LONGER}",
        "changed": ["writer"],
        "score": {"mean": 0.75, "low": 0.75, "high": 0.75, "n": 4},
        "mean": 0.75,
        "tasks": 4,
        "chosen": True,
    }


def test_the_best_version_is_that_of_the_best_checkpoint(agl, tuned):
    """Weights and prompts are chosen together: the last choice may not be the best pair's."""
    first, _ = (
        tuned.checkpoint(step, writer=PromptTemplate(template=text, agents=("writer",)))
        for step, text in ((3, LONGER), (5, KIND))
    )
    assert "best: version 3" in agl("prompts", "shop").output
    tuned.report(f"checkpoints/{first.name}")
    assert "best: version 2" in agl("prompts", "shop").output


def test_a_run_that_was_killed_in_its_phase_is_shown(agl, run):
    phase = asyncio.run(run.phase([(LONGER, TEXT), (KIND, LONGER)], end=False))
    (file,) = phase.directory.glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-20])
    said = agl("prompts", "shop").output
    assert "phase 0: fake, 4 validation tasks, has not ended" in said
    lines = [line.split() for line in said.splitlines()]
    assert any(line[:1] == ["2"] and "best so far" in " ".join(line) for line in lines)
    assert ["3", "0", "of", "4", "2", "writer", "from", *LONGER.split()] in lines
    assert "best: version 2" in said


def test_a_run_without_prompt_phases_says_so(agl, run):
    result = agl("prompts", "shop")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "Run 'agl_runs/shop' has tuned no prompts: no prompt phase has begun"
    ]
    assert json.loads(agl("prompts", "shop", "--json", "-").output) == {
        "versions": [],
        "phases": [],
        "best": 0,
    }


def test_only_the_versions_of_one_prompt(agl, run):
    both = {"writer": prompt(), "planner": prompt("Plan {question}.", name="planner")}
    asyncio.run(run.phase([(LONGER, TEXT), (KIND, LONGER)], prompts=both))
    said = agl("prompts", "shop", "planner").output
    assert "from" not in said.replace(f"from {LONGER}", "")  # the chosen one is shown
    assert "planner, version 1 to 3:\n(the texts are equal)\nPlan {question}." in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent"], "'absent' is not a run"),
        (["shop", "reader"], "tuned no prompt 'reader'; it tuned writer"),
        (["shop", "--diff", "1", "9"], "no version '9'"),
    ],
)
def test_what_is_unknown_is_wrong_usage(agl, tuned, arguments, said):
    result = agl("prompts", *arguments)
    assert result.exit_code == 2
    assert said in result.output
