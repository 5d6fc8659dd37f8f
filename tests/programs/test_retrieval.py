"""An agent that searches over MCP: its retriever, what goes wrong in it, and two steps of training."""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import agents
import pytest
from agl_testing.fake_openai import FakeOpenAI, FakeReply
from openai import AsyncOpenAI

import agl_core as agl
from tests.programs.running import ROOT, imported, started, train

FOLDER = ROOT / "examples" / "16_retrieval"
OWN = ("f1", "index", "process", "program", "retriever", "run_agent", "world")
FEW = ("train.steps=2", "train.tasks_per_step=2", "algorithm.group_size=4")
CHUNKS = (
    "The Silent Harbor is a novel by Mara Quill.",
    "Mara Quill was born in Stone Bay.",
    "Stone Bay is a town in Norland.",
    "The Iron Bell is a film by Hugo Dahl.",
)


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in OWN})
    finally:
        sys.path.remove(str(FOLDER))
        for name in OWN:
            del sys.modules[name]


@pytest.fixture
def index(example, tmp_path):
    file = tmp_path / "index.sqlite"
    example.index.build(file, CHUNKS)
    return file


@pytest.fixture
def retriever(example, index):
    """A server in a process of its own."""
    process = example.process.RetrieverProcess(index)
    yield process
    process.stop()


@pytest.fixture
async def says():
    """Has the model answer from a script; returns what it was asked."""
    agents.set_tracing_disabled(disabled=True)
    state = SimpleNamespace(script=None)
    with FakeOpenAI(lambda body: state.script(body)) as server:  # noqa: PLW0108  it is replaced
        async with AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            agents.set_default_openai_client(client, use_for_tracing=False)

            def start(script):
                state.script = script
                return server.log

            yield start
    agents.set_tracing_disabled(disabled=False)


def search(arguments, name="search"):
    return FakeReply(tool_calls=[{"name": name, "arguments": arguments}])


def replies(*given):
    left = iter(given)
    return lambda body: next(left)


def read(log):
    """What the tool returned before each call of the model."""
    last = [answer.body["messages"][-1] for answer in log]
    return [message["content"] for message in last if message["role"] == "tool"]


def test_the_program_and_its_retriever_do_not_know_that_they_are_trained():
    for name in set(OWN) - {"run_agent"}:
        found = imported(FOLDER / f"{name}.py")
        assert not {each for each in found if each.startswith("agl")}, name


async def test_an_answer_of_two_searches(example, retriever, says):
    log = says(
        replies(
            search({"query": "Silent Harbor novel"}),
            search({"query": "Mara Quill born"}),
            FakeReply(text="<answer> Stone Bay </answer>"),
        )
    )
    said = await example.program.ask("Where was its author born?", retriever.url())
    assert example.program.answer_of(said) == "Stone Bay"
    first, second = read(log)
    assert first.splitlines()[0] == CHUNKS[0]
    assert second.splitlines()[0] == CHUNKS[1]
    assert len(second.splitlines()) <= example.index.TOP
    (tool,) = log[0].body["tools"]
    assert tool["function"]["name"] == "search"
    assert [*tool["function"]["parameters"]["properties"]] == ["query"]


@pytest.mark.parametrize("query", ["", "the of", 'AND "', "zzz", '"', "NOT", "x" * 10_000])
async def test_a_query_without_results_is_no_error(example, retriever, says, query):
    log = says(replies(search({"query": query}), FakeReply(text="<answer></answer>")))
    assert await example.program.ask("Where?", retriever.url()) == "<answer></answer>"
    assert read(log) == [example.retriever.NOTHING]


@pytest.mark.parametrize("arguments", ['{"query": ', {"item": "Stone Bay"}, "[]", "nonsense"])
async def test_a_model_reads_that_its_search_has_no_query(example, retriever, says, arguments):
    log = says(replies(search(arguments), FakeReply(text="no idea")))
    assert await example.program.ask("Where?", retriever.url()) == "no idea"
    assert read(log) == [example.program.NO_QUERY]


async def test_a_query_that_is_no_text_is_an_error_that_the_model_reads(example, retriever, says):
    log = says(replies(search({"query": ["Stone"]}), FakeReply(text="")))
    assert await example.program.ask("Where?", retriever.url()) == ""
    assert "query" in read(log)[0]


@pytest.mark.parametrize(
    "script",
    [
        lambda body: search({"query": "Stone Bay"}),
        lambda body: search({"query": "Stone Bay"}, name="browse"),
        lambda body: FakeReply(text=""),
    ],
    ids=["searches for ever", "another tool", "nothing"],
)
async def test_a_model_that_does_not_answer(example, retriever, says, script):
    log = says(script)
    assert await example.program.ask("Where?", retriever.url()) == ""
    assert len(log) <= example.program.MOST_TURNS


async def test_a_retriever_that_dies_ends_the_question_and_the_next_has_another(
    example, retriever, says
):
    def kill(body):
        retriever.stop()
        return search({"query": "Stone Bay"})

    says(kill)
    with pytest.raises(example.program.RetrieverError, match="Check that it runs"):
        await example.program.ask("Where?", retriever.url())
    with pytest.raises(example.program.RetrieverError, match=r"127\.0\.0\.1:9/mcp failed"):
        await example.program.ask("Where?", "http://127.0.0.1:9/mcp")
    says(replies(search({"query": "Stone Bay"}), FakeReply(text="<answer>Norland</answer>")))
    assert "Norland" in await example.program.ask("Where?", retriever.url())


@pytest.mark.parametrize("place", ["nonsense", "ftp://127.0.0.1/mcp", "http://127.0.0.1:{port}/"])
async def test_an_address_without_a_retriever_is_an_error_that_names_it(
    example, retriever, says, place
):
    says(lambda body: search({"query": "Stone Bay"}))
    url = place.format(port=retriever.url().split(":")[2].partition("/")[0])
    with pytest.raises(example.program.RetrieverError, match=f"the retriever at {url} failed"):
        await example.program.ask("Where?", url)


async def test_an_index_that_breaks_while_it_is_served_ends_the_question(
    example, retriever, index, says
):
    says(lambda body: search({"query": "Stone Bay"}))
    url = retriever.url()
    index.write_bytes(b"no database" * 1000)
    with pytest.raises(example.program.RetrieverError, match="Make it again"):
        await example.program.ask("Where?", url)


def other(file):
    with sqlite3.connect(file) as data:
        data.execute("CREATE TABLE chunks (text)")
    data.close()


def cut(file):
    file.write_bytes(file.read_bytes()[:5000])


def overwritten(file):
    content = bytearray(file.read_bytes())
    content[4096:12288] = b"\xff" * 8192
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda file: file.unlink(), "no such file"),
        (lambda file: (file.unlink(), file.mkdir()), "no such file"),
        (lambda file: file.write_bytes(b""), "not an index"),
        (lambda file: file.write_text("no database " * 100), "cannot be read"),
        (lambda file: (file.unlink(), other(file)), "not an index"),
        (cut, "damaged|cannot be read"),
        (overwritten, "damaged|cannot be read"),
    ],
    ids=["missing", "folder", "empty", "text", "other", "cut", "overwritten"],
)
def test_a_retriever_without_a_sound_index_says_how_to_make_it(example, index, damage, why):
    damage(index)
    process = example.process.RetrieverProcess(index)
    with pytest.raises(example.process.RetrieverStartError, match=f"(?s)({why}).*Make it again"):
        process.url()
    with pytest.raises(example.index.IndexFileError):
        example.index.search(index, "Stone Bay")


def test_an_index_that_is_made_again_replaces_the_broken_one(example, index):
    cut(index)
    example.index.build(index, CHUNKS)
    assert example.index.check(index) == len(CHUNKS)
    assert [file.name for file in index.parent.iterdir()] == [index.name]


def by_hand(*arguments):
    return subprocess.run(
        [sys.executable, FOLDER / "retriever.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_port_that_is_taken_or_none_is_an_error(index):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port in (taken.getsockname()[1], 70_000):
            done = by_hand("--index", index, "--port", str(port))
            assert done.returncode == 1
            assert f"cannot serve at 127.0.0.1:{port}" in done.stderr
            assert "Give another --port" in done.stderr


def test_the_corpus_is_made_by_hand(example, tmp_path):
    file = tmp_path / "new" / "index.sqlite"
    command = [sys.executable, FOLDER / "index.py", "--out", file]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert example.index.check(file) == 600

    command[-1] = file / "another.sqlite"
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot write {command[-1]} (")
    assert done.stderr.endswith("). Give another --out\n")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs to wait for another's child")
def test_a_retriever_ends_with_the_process_that_started_it(index):
    code = f"""
        import sys
        sys.path.insert(0, {str(FOLDER)!r})
        from pathlib import Path
        from process import RetrieverProcess
        process = RetrieverProcess(Path({str(index)!r}))
        process.url()
        print(process._process.pid, flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    try:
        ended, _, _ = select.select([child], [], [], 120)
    finally:
        os.close(child)
    assert ended


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("Stone Bay", "Stone Bay", 1.0),
        ("the stone bay.", "Stone Bay", 1.0),
        ("“Stone—Bay!”", "StoneBay", 1.0),
        ("Stone", "Stone Bay", 2 / 3),
        ("I think it is Stone Bay", "Stone Bay", 0.5),
        ("Stone Stone Stone", "Stone Bay", 0.4),
        ("Mara Quill", "Stone Bay", 0.0),
        ("", "Stone Bay", 0.0),
        ("Stone Bay", "", 0.0),
        ("", "", 1.0),
        ("the .", "", 1.0),
    ],
)
def test_f1(example, answer, gold, expected):
    assert example.f1.f1(answer, gold) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So: <answer> Stone Bay </answer>", "Stone Bay"),
        ("<ANSWER>\nStone\nBay</answer>", "Stone\nBay"),
        ("<answer>Norland</answer> <answer>Veland</answer>", "Veland"),
        ("<answer>or <answer>Veland</answer>", "Veland"),
        ("<answer></answer>", ""),
        ("<answer>Veland", None),
        ("Veland</answer>", None),
        ("Veland", None),
        ("", None),
        ("<answer>" * 5000, None),
    ],
)
def test_what_tags_enclose(example, text, answer):
    assert example.program.answer_of(text) == answer


@pytest.mark.parametrize(
    ("output", "gold", "score", "why"),
    [
        ("<answer>Stone Bay</answer>", "Stone Bay", 1.0, ""),
        ("<answer>Stone</answer>", "Stone Bay", 2 / 3, "'Stone' is not 'Stone Bay'"),
        ("Stone Bay", "Stone Bay", 0.0, "no answer in tags"),
        ("<answer></answer>", "", 1.0, ""),
        ("nonsense", "", 0.0, "no answer in tags"),
        ("<answer>Stone Bay</answer>", "", 0.0, "'Stone Bay' is not ''"),
    ],
)
def test_the_reward_says_what_is_wrong(example, output, gold, score, why):
    task = agl.Task(id="1", input={"question": "Where?", "answer": gold})
    scored = example.run_agent.reward(task, output, None)
    assert scored == pytest.approx(score)
    assert scored.why == why


def test_no_training_question_names_a_held_out_entity(example):
    split = {
        name: {hop for task in tasks for hop in (task.input["question"], task.input["answer"])}
        for name, tasks in (
            ("train", example.run_agent.train_tasks()),
            ("held_out", example.run_agent.held_out_tasks()),
        )
    }
    shared = split["train"] & split["held_out"]
    assert shared <= {*example.world.COUNTRIES}
    held_out = example.run_agent.held_out_tasks()
    assert len(held_out) >= 200
    assert {task.input["hops"] for task in held_out} == {1, 2}


def test_a_good_query_finds_every_fact_first(example, tmp_path):
    world = example.world
    drawn = world.draw_world(example.run_agent.random.Random(world.SEED))
    example.index.build(tmp_path / "index", drawn.chunks())
    for question in world.questions(drawn, "held_out"):
        for hop in question.hops:
            best = example.index.search(tmp_path / "index", f"{hop.entity} {hop.word}")[0]
            assert best.startswith(hop.entity)
            assert best.endswith(f"{hop.answer}.")


def test_two_steps_train_the_researcher(tmp_path, monkeypatch):
    index = tmp_path / "made" / "index.sqlite"
    monkeypatch.setenv("RETRIEVER_INDEX", str(index))
    more = ("train.tasks_per_step=4", "algorithm.group_size=8")
    report = train(FOLDER, tmp_path, *FEW, *more)
    assert index.exists()
    assert set(report["agents"]) == {"researcher"}
    (policy,) = [each for each in report["policies"].values() if each["trainable"]]
    assert policy["sha256_before"] != policy["sha256_after"]
    assert report["calls"] > 64


def test_a_run_without_its_retriever_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("RETRIEVER_URL", "http://127.0.0.1:9/mcp")
    done = started(FOLDER, tmp_path, *FEW, "tasks.val=null")
    assert done.returncode != 0
    assert "the retriever at http://127.0.0.1:9/mcp failed" in done.stdout + done.stderr


def test_a_retriever_that_dies_in_a_run_fails_a_rollout_and_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setenv("RETRIEVER_INDEX", str(tmp_path / "index.sqlite"))
    agent = tmp_path / "dying.py"
    agent.write_text(
        textwrap.dedent(f"""
            import sys
            sys.path.insert(0, {str(FOLDER)!r})
            import program, run_agent
            asked = []

            async def dying(task):
                asked.append(task)
                if len(asked) != 5:
                    return await run_agent.run_agent(task)
                url = run_agent.retriever().url()
                run_agent.retriever().stop()
                return await program.ask(task.input["question"], url)
        """),
        encoding="utf-8",
    )
    report = train(FOLDER, tmp_path, *FEW, f"agent={agent}:dying", "rollout.concurrency=1")
    assert report["lost"]["attempts_dropped_agent"] == 1
    assert len(report["steps"]) == 2
