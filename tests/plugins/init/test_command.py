"""`agl init`: what it writes for which program, and what it refuses."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
from agl_init._command import command
from click.testing import CliRunner

from agl_core._builtin import load_plugins
from agl_core.app.parts import make_tasks
from agl_core.cli.group import CliState
from agl_core.config.loader import load_config
from agl_core.config.references import load_object
from agl_core.errors import ConfigError
from agl_core.types import Task
from tests.installed import INSTALLED

FILES = ("run.toml", "tasks.jsonl", "training.py")
SHOP = """
from framework import Agent

raise RuntimeError("nothing runs the program")

planner = Agent(name="planner")
writer = make_agent(llm, role="the writer")
graph.add_node("tools", run)

def answer(question: str, verbose: bool = False) -> str:
    return planner.run(question)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", INSTALLED)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("_agl_file_") or name in ("shop", "my_shop", "program"):
            del sys.modules[name]


def init(*arguments: str):
    return CliRunner().invoke(command, list(arguments), obj=CliState())


def done(*arguments: str) -> str:
    result = init(*arguments)
    assert result.exception is None, result.exception
    return result.output


def refused(*arguments: str) -> str:
    result = init(*arguments)
    assert isinstance(result.exception, ConfigError), (result.output, result.exception)
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_a_program_named_by_its_file_gets_a_run(folder):
    """agl init: run.toml, tasks and a reward, and the command to go on with; nothing is run."""
    (folder / "shop.py").write_text(SHOP)
    output = done("shop.py:answer")
    assert all(f"wrote {name}" in output for name in FILES)
    assert output.splitlines()[-1].strip() == "agl doctor run.toml"
    config = load_config("run.toml")
    assert config.name == "shop"
    assert config.agents == ["*"]
    assert config.agent == f"{folder / 'training.py'}:run_agent"
    text = (folder / "run.toml").read_text()
    for name in ("planner", "the writer", "tools"):
        assert f'# agents = ["{name}"]\n' in text


def test_what_is_written_runs(folder):
    """agl init: the function of a task calls the program with the task's input."""
    (folder / "shop.py").write_text("def answer(question):\n    return f'{question}? 42'\n")
    done("shop.py:answer")
    config = load_config("run.toml")
    tasks = make_tasks(None, config.tasks, "train", load_plugins())
    assert [task.input for task in tasks] == [f"Replace this by question {n}" for n in (1, 2)]
    run_agent, reward = load_object(config.agent), load_object(config.rewards[0].name)
    assert run_agent(Task(id="1", input="6 * 7")) == "6 * 7? 42"
    assert reward(Task(id="1", expected=42), "the answer is 42", None) == 1.0
    assert reward(Task(id="1", expected="No"), "yes", None) == 0.0


async def test_what_is_written_awaits_an_async_program(folder):
    """agl init: so does an async one, with several parameters by their names."""
    (folder / "shop.py").write_text(
        "async def answer(item, *, colour):\n    return item + colour\n"
    )
    done("shop.py:answer")
    rows = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    assert [sorted(row["input"]) for row in rows] == [["colour", "item"]] * 2
    run_agent = load_object(load_config("run.toml").agent)
    assert await run_agent(Task(id="1", input={"item": "lamp ", "colour": "red"})) == "lamp red"


@pytest.mark.parametrize(
    "head",
    ["def run_agent(task):", "async def run_agent(each: agl.Task):", "def run_agent(t: Task):"],
)
def test_a_function_of_a_task_is_used_as_it_is(folder, head):
    """agl init: what already takes a task needs no function around it."""
    (folder / "shop.py").write_text(f"{head}\n    return 1\n")
    done("shop.py:run_agent")
    assert load_config("run.toml").agent == f"{folder / 'shop.py'}:run_agent"
    defined = ast.parse((folder / "training.py").read_text()).body
    assert [each.name for each in defined if isinstance(each, ast.FunctionDef)] == ["reward"]


def test_a_module_is_found_from_the_working_directory(folder):
    """agl init: package.module:function, without importing the package."""
    package = folder / "my_shop"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "desk.py").write_text("from my_shop.agents import plan\n\ndef answer(q): ...\n")
    (package / "agents.py").write_text("plan = Agent('the planner')\n")
    done("my_shop.desk:answer")
    assert sorted(each.name for each in folder.iterdir()) == ["my_shop", *sorted(FILES)]
    assert "from my_shop.desk import answer\n" in (folder / "training.py").read_text()
    assert '# agents = ["the planner"]' in (folder / "run.toml").read_text()
    assert load_config("run.toml").name == "desk"


def test_an_installed_module_is_found(folder):
    """agl init: also where it lies elsewhere."""
    done("json.decoder:scanstring")
    assert "from json.decoder import scanstring\n" in (folder / "training.py").read_text()


def test_files_go_beside_the_program(folder):
    """agl init: wherever the command is typed, what is written finds the program."""
    (folder / "src").mkdir()
    (folder / "src" / "my-shop.py").write_text("def answer(question):\n    return question\n")
    (folder / "model").mkdir()
    output = done("src/my-shop.py:answer", "--model", "model")
    assert "agl doctor src/run.toml" in output.replace("\\", "/")
    config = load_config("src/run.toml")
    assert load_object(config.agent)(Task(id="1", input="x")) == "x"
    assert config.model == str(folder / "model")


def test_a_name_of_unusual_letters_is_written_as_it_is(folder):
    """agl init: quotes, backslashes and any alphabet in names."""
    (folder / "shop.py").write_text(
        "Agent(name='3号 \"wolf\" \\\\ x')\n\ndef ответ(вопрос): ...\n", encoding="utf-8"
    )
    done("shop.py:ответ")
    assert load_config("run.toml").agent is not None
    assert '# agents = ["3号 \\"wolf\\" \\\\ x"]' in (folder / "run.toml").read_text("utf-8")


def test_nothing_is_overwritten_without_force(folder):
    """agl init: neither one file nor, because of one, the others."""
    (folder / "shop.py").write_text("def answer(question): ...\n")
    (folder / "tasks.jsonl").write_text("mine")
    message = refused("shop.py:answer")
    assert "tasks.jsonl" in message
    assert "--force" in message
    assert sorted(each.name for each in folder.iterdir()) == ["shop.py", "tasks.jsonl"]
    assert (folder / "tasks.jsonl").read_text() == "mine"
    done("shop.py:answer", "--force")
    assert (folder / "tasks.jsonl").read_text() != "mine"
    assert "run.toml, tasks.jsonl, training.py" in refused("shop.py:answer")


def test_the_program_itself_is_never_overwritten(folder):
    """agl init: not even with --force."""
    text = "def answer(question): ...\n"
    (folder / "training.py").write_text(text)
    assert "the program itself" in refused("training.py:answer", "--force")
    assert [each.name for each in folder.iterdir()] == ["training.py"]
    assert (folder / "training.py").read_text() == text


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("shop.py", "names no function: write 'package.module:function'"),
        ("shop.py:", "names no function"),
        (":answer", "names no function"),
        ("shop.py:graph.invoke", "names no function"),
        ("shop.py:anwser", r"functions there are answer, ask, nothing; did you mean 'answer'\?"),
        ("shop.py:Desk", "'Desk' is a class"),
        ("shop.py:nothing", "takes no argument"),
        ("shap.py:answer", "there is no file"),
        ("no_such_module:answer", "there is no module 'no_such_module'"),
        ("json.no_such:answer", "there is no module 'json.no_such'"),
        ("sys:exit", "there is no module 'sys'"),
        ("a-b.c:answer", "is no module"),
        ("broken.py:answer", "is no Python file .*line 1"),
        ("latin.py:answer", "is not UTF-8"),
        (".:answer", "is no module"),
    ],
)
def test_wrong_programs_are_refused_in_one_line(folder, program, words):
    """agl init: the error says what is wrong with the value, and nothing is written."""
    (folder / "shop.py").write_text(
        "class Desk: ...\ndef answer(q): ...\nasync def ask(q): ...\ndef nothing(): ...\n"
    )
    (folder / "broken.py").write_text("def answer(:\n")
    (folder / "latin.py").write_bytes("# é\ndef answer(q): ...\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=words):
        raise init(program).exception
    assert not [name for name in FILES if (folder / name).exists()]


def test_what_runs_as_main_is_no_module_of_a_program(folder, monkeypatch):
    """agl init: Python gives what a console script runs no spec."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(ConfigError, match="there is no module '__main__'"):
        raise init("__main__:answer").exception


@pytest.mark.parametrize(
    "source",
    [
        "answer = graph.invoke",
        "from elsewhere import answer",
        "import elsewhere as answer",
        "try:\n    import fast\nexcept ImportError:\n    def answer(q): ...",
        "if True:\n    answer: object = build()",
        "def answer(*questions): ...",
        "def answer(question=None): ...",
    ],
)
def test_a_function_may_be_given_its_name_in_any_way(folder, source):
    """agl init: what the source does not say is left to the doctor."""
    (folder / "shop.py").write_text(f"{source}\n")
    done("shop.py:answer")
    assert "return answer(task.input)" in (folder / "training.py").read_text()


def test_a_folder_that_cannot_be_written_is_named(folder, monkeypatch):
    """agl init: the file and the system's reason."""
    (folder / "shop.py").write_text("def answer(question): ...\n")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    message = refused("shop.py:answer")
    assert "run.toml" in message
    assert "No space left on device" in message
