"""A LangGraph program that writes and rewrites queries, by itself and trained for two steps."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
from agl_testing.fake_openai import FakeOpenAI, FakeReply

from tests.programs.running import ROOT, imported, started, train

FOLDER = ROOT / "examples" / "13_sql"
MODULES = ("program", "database", "run_agent")
SPACE = FOLDER / "data" / "space.sqlite"
FEW = ("train.steps=2", "train.tasks_per_step=2", "algorithm.group_size=4")
COUNT = "SELECT COUNT(*) FROM moon"


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("program")
    for name in MODULES:
        sys.modules.pop(name, None)


def node_of(body):
    system = body["messages"][0]["content"]
    nodes = {"Write one": "write", "Does the": "check", "The query": "rewrite"}
    return next(node for start, node in nodes.items() if system.startswith(start))


def answer(program, monkeypatch, *answers, path=SPACE):
    """Ask about the moons; the nodes answer in turn, the last answer is repeated."""
    given = list(answers)
    with FakeOpenAI(
        lambda body: FakeReply(text=given.pop(0) if len(given) > 1 else given[0])
    ) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        state = program.answer("How many moons are there?", path)
        asked = [(node_of(each.body), each.body["messages"][1]["content"]) for each in server.log]
        program.model().root_client.close()
    return state, asked


def test_the_program_does_not_know_that_it_is_trained():
    for name in ("program.py", "database.py"):
        assert not {each for each in imported(FOLDER / name) if each.startswith("agl")}
    source = (FOLDER / "run_agent.py").read_text(encoding="utf-8")
    assert source.count("AglCallbackHandler()") == 1


def test_a_right_query_is_written_and_checked(program, monkeypatch):
    state, asked = answer(program, monkeypatch, f"```sql\n{COUNT};\n```", "Correct.")
    assert [node for node, _ in asked] == ["write", "check"]
    assert (state["query"], state["result"], state["turns"]) == (f"{COUNT};", "10", 1)
    assert "CREATE TABLE moon" in asked[0][1]
    assert asked[1][1].endswith(f"Query: {COUNT};\nResult: 10")


def test_a_wrong_query_is_rewritten(program, monkeypatch):
    state, asked = answer(
        program, monkeypatch, "SELECT COUNT(*) FROM sun", "wrong", COUNT, "correct"
    )
    assert [node for node, _ in asked] == ["write", "check", "rewrite", "check"]
    assert "Result: Error: no such table: sun" in asked[2][1]
    assert (state["result"], state["turns"]) == ("10", 2)


@pytest.mark.parametrize(
    "said", ["", "I do not know.", "DROP TABLE moon", "ATTACH 'x' AS x", "\U0001f600 SELECT"]
)
def test_nonsense_ends_after_three_turns(program, monkeypatch, said):
    before = SPACE.read_bytes()
    state, asked = answer(program, monkeypatch, said)
    assert [node for node, _ in asked] == ["write", "check", "rewrite", "check", "rewrite"]
    assert state["result"].startswith("Error: ")
    assert state["turns"] == program.MOST_TURNS
    assert SPACE.read_bytes() == before
    assert not state["database"].exists()


def test_the_next_rollout_sees_the_same_data(program, monkeypatch):
    answer(program, monkeypatch, "DELETE FROM moon")
    program.model.cache_clear()
    state, _ = answer(program, monkeypatch, COUNT, "correct")
    assert state["result"] == "10"


def test_two_steps_train_write_and_rewrite_alone(tmp_path):
    report = train(FOLDER, tmp_path, *FEW)
    assert set(report["agents"]) == {"write", "rewrite"}
    changed = {
        name: policy["sha256_before"] != policy["sha256_after"]
        for name, policy in report["policies"].items()
    }
    assert changed == {"writer": True, "checker": False}
    assert set(report["rows"]["by_agent"]) <= {"write", "rewrite"}
    assert [step["rollouts"] for step in report["steps"]] == [8, 8]


def test_a_task_without_its_database_is_a_failed_rollout_that_names_the_path(tmp_path):
    rows = [
        {"id": f"gone-{n}", "input": {"question": "How many?", "database": "gone.sqlite"}}
        for n in range(2)
    ]
    (tmp_path / "gone.json").write_text(json.dumps(rows), encoding="utf-8")
    done = started(
        FOLDER, tmp_path, *FEW, "tasks.val=null", f"tasks.train={tmp_path / 'gone.json'}"
    )
    assert done.returncode != 0
    assert "No database at" in done.stdout + done.stderr
