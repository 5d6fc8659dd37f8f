"""The named sets, their reward, and their names in a configuration."""

import ast
import contextlib
import io
import sys
import types
from dataclasses import replace

import pytest
from agl_tasks._hub import gsm8k
from agl_tasks._reward import TaskSet
from agl_testing.attempts import ScriptedAttempt
from agl_testing.reward_contract import RewardContract
from msgspec import structs

import agl_core as agl
from agl_core._builtin import load_plugins
from agl_core.app.parts import make_tasks
from agl_core.config import TasksConfig
from agl_core.errors import ConfigError, RewardError
from agl_core.types import Task, as_task

GENERATED = ("math", "coding", "reasoning", "sql-generation")


@pytest.fixture(scope="module")
def plugins():
    return load_plugins()


def tasks(plugins, name, split="train"):
    return make_tasks(None, TasksConfig(**{split: name}), split, plugins)


def score(task, output):
    return TaskSet()(task, output, None)


@pytest.mark.parametrize("name", GENERATED)
def test_a_set_has_two_splits_that_are_the_same_in_every_run(plugins, name):
    train, val = tasks(plugins, name), tasks(plugins, name, "val")

    assert (len(train), len(val)) == (200, 50)
    assert train == tasks(plugins, name)
    assert not {task.input for task in train} & {task.input for task in val}


@pytest.mark.parametrize("name", GENERATED)
def test_the_expected_answer_is_right_and_another_is_not(plugins, name):
    for task in tasks(plugins, name, "val"):
        assert score(task, task.expected) == 1.0
        assert score(task, "SELECT 'no'") == 0.0
        assert score(task, None) == 0.0


def test_what_programs_print_is_what_python_prints(plugins):
    for task in tasks(plugins, "coding"):
        code = task.input.split("\n\n")[1]
        ast.parse(code)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, {})
        assert printed.getvalue().strip() == task.expected


def test_answers_may_have_words_around_them(plugins):
    answers = {
        "math": "that makes {}.",
        "coding": "It prints:\n{}",
        "reasoning": "The answer is {}!",
        "sql-generation": "Like so:\n```sql\n{};\n```",
    }
    for name, text in answers.items():
        task = tasks(plugins, name)[0]
        assert score(task, text.format(task.expected)) == 1.0


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE {table}",
        "DELETE FROM {table}",
        "SELECT 1; DROP TABLE {table}",
        "ATTACH DATABASE 'x' AS x",
        "PRAGMA writable_schema = 1",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
        "SELECT hex(zeroblob(500000000))",
        "nonsense",
        "\x00",
    ],
)
def test_a_query_that_writes_never_ends_or_means_nothing_is_wrong(plugins, query):
    task = tasks(plugins, "sql-generation")[0]
    assert score(task, query.format(**task.metadata)) == 0.0
    assert score(task, task.expected) == 1.0


def test_an_unknown_set_is_named_with_the_nearest(plugins):
    with pytest.raises(ConfigError, match=r"Unknown task 'maths'; did you mean 'math'\?"):
        tasks(plugins, "maths")


def test_a_task_of_no_set_is_not_scored():
    with pytest.raises(RewardError, match="names the set None"):
        score(Task(id="t", input="x"), "7")


def test_gsm8k_is_read_by_its_library(plugins, monkeypatch):
    row = {"question": "How many?", "answer": "2 * 600 = 1,200\n#### 1,200"}
    library = types.ModuleType("datasets")
    library.load_dataset = lambda path, name, split: [{**row, "question": f"{path} {name} {split}"}]
    monkeypatch.setitem(sys.modules, "datasets", library)

    (task,) = tasks(plugins, "gsm8k", "val")

    assert task.input == "openai/gsm8k main test"
    assert score(task, "It is 1200") == 1.0


def test_without_its_library_gsm8k_names_what_to_install(plugins, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(agl.PluginError, match="datasets"):
        tasks(plugins, "gsm8k")
    with pytest.raises(ImportError):
        gsm8k("train")


class TestReward(RewardContract):
    @pytest.fixture
    def reward(self):
        return TaskSet()

    @pytest.fixture
    def records(self):
        records = []
        for name, output in (("1", "it is 7"), ("2", "8")):
            script = ScriptedAttempt(name, expected="7")
            script.call("writer", [1, 2], [3])
            record = script.record(output=output)
            task = structs.replace(record.rollout.task, metadata={"set": "math"})
            records.append(replace(record, rollout=structs.replace(record.rollout, task=task)))
        return records


def test_rows_are_tasks(plugins):
    rows = plugins.registry("tasks").create("math", "train")
    assert as_task(rows[0], index=0).metadata == {"set": "math"}
