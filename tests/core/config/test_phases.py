"""Prompts and phases of a configuration: forms, sums of steps, refusals."""

import json

import pytest

from agl_core.config import PhaseConfig, RunConfig, TrainConfig, load_config, resolve
from agl_core.config.loader import dump
from agl_core.errors import ConfigError

WRITER = {"agents": ["writer"], "captured": True}
TUNES = {"optimizer": "gepa", "rollouts": 50}


def test_steps_are_the_sum_of_the_phases_and_the_stored_form_is_read_again():
    config = resolve(
        {
            "prompts": {"greeting": "Hi {name}", "writer": WRITER},
            "optimizers": {"gepa": {"minibatch": 3}},
            "phases": [
                {"algorithm": "grpo", "steps": 3, "lr": 1e-3},
                {**TUNES, "prompts": ["writer"]},
                {"algorithm": "sft", "steps": 4},
            ],
        }
    )
    assert config.train.steps == 7
    assert config.phases[0].options == {"lr": 1e-3}
    assert config.prompts["greeting"].text == "Hi {name}"
    assert resolve(json.loads(dump(config))) == config


def test_phases_may_be_objects():
    config = RunConfig(
        train=TrainConfig(max_staleness=1), phases=[PhaseConfig(algorithm="grpo", steps=2)]
    )
    assert (config.train.steps, config.train.max_staleness) == (2, 1)


def test_a_prompt_file_counts_from_the_configuration_and_its_text_is_stored(tmp_path):
    (tmp_path / "writer.txt").write_text("Say {what}.", encoding="utf-8")
    run = tmp_path / "run.toml"
    run.write_text('[prompts.writer]\nagents = ["writer"]\nfile = "writer.txt"\n', encoding="utf-8")
    prompt = load_config(run).prompts["writer"]
    assert (prompt.text, prompt.file) == ("Say {what}.", None)


def test_an_editors_function_counts_from_the_configuration(tmp_path):
    run = tmp_path / "run.toml"
    run.write_text(
        '[prompts.w]\nagents = ["w"]\ncaptured = true\n'
        '[optimizers.apo.editor]\nfunction = "edits.py:edit"\n'
        '[[phases]]\noptimizer = "apo"\nrollouts = 9\ncritic = {function = "edits.py:say"}\n',
        encoding="utf-8",
    )
    config = load_config(run)
    assert config.optimizers["apo"]["editor"]["function"] == f"{tmp_path / 'edits.py'}:edit"
    assert config.phases[0].options["critic"]["function"] == f"{tmp_path / 'edits.py'}:say"


def test_a_prompt_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"Prompt: cannot read .*nothing.txt"):
        resolve({"prompts": {"writer": {"file": str(tmp_path / "nothing.txt")}}})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"phases": [{"algorithm": "grpo"}]}, r"phases\.0.*algorithm needs steps"),
        ({"phases": [{"optimizer": "gepa"}]}, r"phases\.0.*optimizer needs rollouts"),
        ({"phases": [{"steps": 2}]}, "set algorithm or optimizer"),
        ({"phases": [{**TUNES, "algorithm": "grpo"}]}, "set algorithm or optimizer, not both"),
        ({"phases": [{**TUNES, "steps": 2}]}, "steps does not belong"),
        (
            {"phases": [{"algorithm": "grpo", "steps": 2, "rollouts": 2}]},
            "rollouts does not belong",
        ),
        (
            {"phases": [{"algorithm": "grpo", "steps": 2, "prompts": ["writer"]}]},
            "prompts does not belong",
        ),
        ({"phases": ["grpo"]}, r"phases\.0 = 'grpo'"),
        (
            {"train": {"steps": 4}, "phases": [{"algorithm": "grpo", "steps": 3}]},
            "train.steps = 4, but the phases have 3 steps in all",
        ),
        ({"train": {"steps": 0}}, "must be at least 1"),
        ({"phases": [TUNES]}, "phases.0 tunes no prompt: .* set prompts.NAME.agents"),
        (
            {"phases": [{**TUNES, "prompts": ["b"]}], "prompts": {"a": WRITER, "b": "untuned"}},
            r"phases.0 tunes \['b'\].*agents are \['a'\]",
        ),
        ({"prompts": {"a": {"captured": True}}}, "prompts.a.*needs agents"),
        ({"prompts": {"a": {**WRITER, "text": "x"}}}, "exactly one of text, file and captured"),
        ({"prompts": {"a": {"agents": ["writer"]}}}, "exactly one of text, file and captured"),
        ({"prompts": {"a": {"text": "x", "tool": "t"}}}, "tool is only for captured"),
        (
            {"prompts": {"a": WRITER, "b": WRITER}},
            "prompts.a and prompts.b both capture the text of agent 'writer'",
        ),
        ({"prompts": {"a": {"agent": ["w"], "text": "x"}}}, "did you mean 'prompts.a.agents'"),
    ],
)
def test_wrong_phases_and_prompts_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        resolve(given)


def test_two_tools_of_one_agent_are_two_prompts():
    tool = {**WRITER, "tool": "search"}
    assert resolve({"prompts": {"a": WRITER, "b": tool, "c": {**tool, "tool": "read"}}})
