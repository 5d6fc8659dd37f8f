"""Tasks and programs of the example that tunes prompts; `tests/together` runs it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from agl_demo import world

from agl_core.config.loader import load_config

FOLDER = Path(__file__).parents[2] / "examples" / "11_prompts"
PROGRAMS = ("agent.py", "autogen_agent.py", "crewai_agent.py")


@pytest.fixture(scope="module")
def tasks():
    spec = importlib.util.spec_from_file_location("prompts_tasks", FOLDER / "tasks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_demonstrations_choice_and_report_use_different_items(tasks):
    train, val, held_out = (
        {task.input["item"] for task in make()}
        for make in (tasks.train_tasks, tasks.val_tasks, tasks.held_out_tasks)
    )
    assert (len(train), len(val), len(held_out)) == (120, 60, 200)
    assert len(train | val | held_out) == 380
    assert {task.input["item"] for task in tasks.few_val_tasks()} < val
    assert held_out <= set(world.ITEMS["held_out"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_no_line_for_training_or_prompts(name):
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    ours = [line for line in imports if "agl_" in line]
    assert [line.split()[1] for line in ours] == ["agl_demo.world"]
    assert not any("resource" in line or "agl." in line for line in lines[8:])


def test_the_run_file_tunes_the_prompt_and_trains_no_weights():
    config = load_config(FOLDER / "run.toml")
    assert config.prompts["writer"].captured
    assert [phase.optimizer for phase in config.phases] == ["bootstrap"]
    assert not any(policy.trainable for policy in config.policies.values())
    assert (config.policies["writer"].model, config.policies["planner"].model) == (
        "smollm2",
        "demo",
    )


def test_the_tiny_run_file_differs_in_model_and_size_alone():
    whole, tiny = (load_config(FOLDER / name) for name in ("run.toml", "tiny.toml"))
    assert (tiny.agent, tiny.prompts, tiny.rewards) == (whole.agent, whole.prompts, whole.rewards)
    size = {"rollouts": 120}
    assert [phase.model_copy(update=size) for phase in whole.phases] == tiny.phases
