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
FEW = ("train.steps=2", "train.tasks_per_step=2")
COUNT = "SELECT COUNT(*) FROM moon"
ENDLESS = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT COUNT(*) FROM t"


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
    "said",
    ["", "I do not know.", "DROP TABLE moon", "ATTACH 'x' AS x", "\U0001f600 SELECT", ENDLESS],
)
def test_nonsense_ends_after_three_turns(program, monkeypatch, said):
    monkeypatch.setattr(program.database, "TIMEOUT_S", 0.2)
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


def test_the_shipped_model_copies_names_of_schemas_that_it_has_not_seen(program):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER / "model").float()
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER / "model", padding_side="left")
    lines = (FOLDER / "data" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()[::3]
    questions = [json.loads(line) for line in lines]
    paths = [FOLDER / "data" / question["database"] for question in questions]
    states = [
        program.State(question=question["question"], schema=program.database.schema(path))
        for question, path in zip(questions, paths, strict=True)
    ]
    texts = [
        tokenizer.apply_chat_template(
            program.prompt("write", state), add_generation_prompt=True, tokenize=False
        )
        for state in states
    ]
    prompts = tokenizer(texts, return_tensors="pt", padding=True)
    ids = model.generate(**prompts, max_new_tokens=40, do_sample=True, top_k=0)
    answers = tokenizer.batch_decode(ids[:, prompts["input_ids"].shape[1] :], True)
    errors = [
        program.database.run(path, answer).error
        for path, answer in zip(paths, answers, strict=True)
    ]
    assert sum(error.startswith("no such") for error in errors) <= len(errors) // 10


def test_two_steps_train_write_and_rewrite_alone(tmp_path):
    # The checker finds a query wrong in one of four attempts; only then there is a rewrite.
    report = train(FOLDER, tmp_path, *FEW, "algorithm.group_size=8")
    assert set(report["agents"]) == {"write", "rewrite"}
    changed = {
        name: policy["sha256_before"] != policy["sha256_after"]
        for name, policy in report["policies"].items()
    }
    assert changed == {"writer": True, "checker": False}
    assert set(report["rows"]["by_agent"]) <= {"write", "rewrite"}
    assert [step["rollouts"] for step in report["steps"]] == [16, 16]


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
