"""Agents, traces, stores, files and the command of older programs."""

import subprocess
import sys
import warnings

import agl_compat
import pytest
from agl_compat._agent import schema_of
from agl_compat._command import main
from agl_compat._file import is_older, train_file
from agl_compat._grpo import named_tasks, set_names
from agl_testing.fake_openai import FakeOpenAI, FakeOptions, FakeReply

import agl_core
from agl_core.errors import ConfigError, EngineError

pytestmark = pytest.mark.filterwarnings("ignore::agl_compat.OldNameWarning")
PLAIN = FakeOptions(token_ids=False)


@pytest.fixture
def server(monkeypatch):
    with FakeOpenAI(lambda body: "echo " + body["messages"][-1]["content"], PLAIN) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


def test_emit_tool_call_makes_the_call(server):
    answer = agl_compat.emit_tool_call(
        model="fake-model",
        messages=[{"role": "user", "content": "hi"}],
        tools=[{"type": "function", "function": {"name": "look", "parameters": {}}}],
        context={"step": 1},
        temperature=0.5,
    )
    assert answer.choices[0].message.content == "echo hi"
    assert answer["choices"][0]["message"]["content"] == "echo hi"
    assert answer.choices[0].message.tool_calls is None
    (asked,) = server.log
    assert asked.body["temperature"] == 0.5
    assert asked.body["tools"][0]["function"]["name"] == "look"


def test_emit_tool_call_without_messages_names_the_other_function():
    with pytest.raises(ConfigError, match=r"agl\.emit_tool_call\(name, arguments, result\)"):
        agl_compat.emit_tool_call("search")


def test_without_an_address_there_is_no_call(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL"):
        agl_compat.emit_tool_call("m", [{"role": "user", "content": "hi"}])
    monkeypatch.setenv("OPENAI_BASE_URL", "ftp://x")
    with pytest.raises(ConfigError, match="ftp://x"):
        agl_compat.emit_tool_call("m", [{"role": "user", "content": "hi"}])
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(EngineError, match="gives no answer"):
        agl_compat.emit_tool_call("m", [{"role": "user", "content": "hi"}])


def test_a_call_in_a_rollout_is_trained(settings):
    def run_agent(task):
        answer = agl_compat.emit_tool_call(
            "any", [{"role": "user", "content": "hi"}], context={"agent": "writer"}
        )
        with agl_core.agent_scope("judge", trainable=False):
            agl_compat.emit_tool_call("any", [{"role": "user", "content": "judge"}])
        return answer.choices[0].message.content

    report = agl_core.train(
        run_agent,
        [{"input": n} for n in range(4)],
        agents=["writer"],
        reward=lambda task, output, attempt: float(output == "yes"),
        overrides=settings,
        progress=False,
    )

    assert report.calls == 2 * 2 * 4 * 2
    assert sum(step.metrics["calls"] for step in report.steps) == 2 * 2 * 4
    assert report.policies["frozen"]["sha256_before"] == report.policies["frozen"]["sha256_after"]


def test_the_last_trace_is_shown_as_a_tree(server):
    with agl_compat.tracer.trace("main", {"question": "hi"}):
        with agl_core.operation("plan"), agl_core.agent_scope("planner"):
            agl_compat.emit_tool_call("fake-model", [{"role": "user", "content": "hi"}])
        agl_core.emit_reward(0.5)

    trace = agl_compat.tracer.last_trace()
    lines = [line.rsplit(" ", 2)[0].split(" 0.")[0] for line in trace.visualize().splitlines()]
    assert trace.visualize("tree_graph") == trace.visualize()
    assert trace.visualize().splitlines()[0].startswith("operation main")
    assert "├─ operation plan" in trace.visualize()
    assert "│  └─ agent planner" in trace.visualize()
    assert "└─ reward main = 0.5" in trace.visualize()
    assert lines
    with pytest.raises(ConfigError, match="known are tree_graph"):
        trace.visualize("pie")


def test_without_a_trace_there_is_nothing_to_show():
    import contextvars

    with pytest.raises(ConfigError, match="There is no trace yet"):
        contextvars.Context().run(agl_compat.tracer.last_trace)


def look_up(item: str, count: int = 1) -> str:
    """Look up the price of an item."""
    return f"{item}: {3 * count}"


def test_an_agent_calls_its_tools(monkeypatch):
    def script(body):
        if body["messages"][-1]["role"] == "tool":
            return "it costs " + body["messages"][-1]["content"]
        call = {"name": "look_up", "arguments": {"item": "tea", "count": 2}}
        return FakeReply(tool_calls=[call])

    with FakeOpenAI(script, PLAIN) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        agent = agl_compat.Agent("shop", "You sell.", [look_up])
        assert agent.run("what does tea cost?") == "it costs tea: 6"
    first, second = server.log
    assert first.body["messages"][0] == {"role": "system", "content": "You sell."}
    assert first.body["tools"] == [schema_of(look_up)]
    assert second.body["messages"][-1]["content"] == "tea: 6"


def test_a_wrong_call_of_a_tool_is_read_by_the_model(monkeypatch):
    said = []

    def script(body):
        if body["messages"][-1]["role"] == "tool":
            said.append(body["messages"][-1]["content"])
            return "sorry"
        return FakeReply(tool_calls=[{"name": "look_up", "arguments": {"thing": "tea"}}])

    with FakeOpenAI(script, PLAIN) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        assert agl_compat.Agent("shop", tools=[look_up]).run({"ask": "tea"}) == "sorry"
    assert said[0].startswith("error: missing a required argument: 'item'")


def test_the_schema_of_a_tool_has_its_types():
    schema = schema_of(look_up)["function"]
    assert schema["description"] == "Look up the price of an item."
    assert schema["parameters"]["required"] == ["item"]
    assert schema["parameters"]["properties"]["count"]["default"] == 1
    with pytest.raises(ConfigError, match="give a function"):
        agl_compat.Agent("a", tools=["no"])


def test_an_agent_is_trained_on_named_sets(settings, tmp_path):
    config = agl_compat.RLConfig(episodes=1, batch_size=2, learning_rate=1.0, settings=settings)
    trainer = agl_compat.GRPOTrainer(config=config, store=agl_compat.InMemoryLightningStore())

    report = trainer.train(
        agl_compat.Agent("solver", "Answer."), eval_tasks=["math"], reward=says_yes
    )

    assert [evaluation.score.n for evaluation in report.evaluations] == [50, 50]
    assert (tmp_path / "run" / "training.log").is_file()
    assert not (tmp_path / "run" / "store.db").exists()


def says_yes(task, output, attempt):
    return float(output == "yes")


def test_names_of_sets_and_other_tasks_are_distinguished():
    assert set_names("math") == ["math"]
    assert set_names(["math", "coding"]) == ["math", "coding"]
    assert set_names("tasks.jsonl") == []
    assert set_names("module:rows") == []
    assert set_names([{"input": 1}]) == []
    assert len(named_tasks(["math", "reasoning"], "val")) == 100
    with pytest.raises(ConfigError, match="did you mean 'math'"):
        named_tasks(["maths"], "val")


def test_apo_needs_an_agent_with_a_prompt():
    trainer = agl_compat.GRPOTrainer({"algorithm": "apo"})
    with pytest.raises(ConfigError, match="tunes the system prompt of an Agent"):
        trainer.train(lambda task: 1, eval_tasks="math")


@pytest.mark.parametrize("scheme", ["s3", "gs", "mysql"])
def test_a_storage_that_no_plugin_serves_is_an_error(monkeypatch, scheme):
    monkeypatch.setenv("AGL_STORAGE", f"{scheme}://user:secret@bucket/prefix/")
    for use in (agl_compat.LightningStore, agl_compat.Trainer, agl_compat.GRPOTrainer):
        with pytest.raises(ConfigError, match=f"no plugin serves {scheme}://") as error:
            use()
        assert "secret" not in str(error.value)


def test_a_storage_that_is_served_or_a_directory_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("AGL_STORAGE", str(tmp_path))
    assert agl_compat.LightningStore().settings() == {"directory": str(tmp_path)}
    assert agl_compat.LightningStore("http://host:1").settings() == {
        "store.name": "http",
        "store.url": "http://host:1",
    }
    monkeypatch.delenv("AGL_STORAGE")
    assert agl_compat.LightningStore().settings() == {}


PROGRAM = """
import agl_core as agl
from agl_compat import emit_tool_call

def run_agent(task):
    with agl.agent_scope("solver"):
        answer = emit_tool_call("any", [{"role": "user", "content": task.input}])
    return answer.choices[0].message.content

def reward(task, output, attempt):
    return float(output == "yes")
"""
FILE = """
agent:
  name: solver
  type: program.py:run_agent
training:
  algorithm: grpo
  episodes: 1
  batch_size: 2
  learning_rate: 1.0
environment:
  eval_tasks: [math, coding]
  reward: program.py:reward
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    file = tmp_path / "old.yaml"
    file.write_text(FILE)
    return file


def test_a_file_with_older_sections_is_trained(file, settings):
    report = train_file(file, {**settings, "train.steps": 1})
    assert len(report.steps) == 1
    assert report.evaluations[0].score.n == 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent: {nam: x}", r"unknown key 'agent.nam'; did you mean 'agent.name'\?"),
        ("trainng: {}\nagent: {}", r"unknown key 'trainng'; did you mean 'training'\?"),
        ("agent: {type: some_framework}", "write type: file.py:function"),
        ("agent: {type: 3}", "names no program"),
        ("training: 7", "write it as a section"),
    ],
)
def test_what_a_file_cannot_say_is_an_error(tmp_path, text, message):
    file = tmp_path / "old.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        train_file(file)


def test_older_files_are_recognised():
    assert is_older({"agent": {"name": "a"}})
    assert is_older({"training": {}})
    assert not is_older({"agent": "file.py:run", "train": {}})


def test_the_older_command_is_the_program(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["agent-lightning", "plugins"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert "compat" in capsys.readouterr().out


def test_the_older_command_trains_an_older_file(file, settings, tmp_path):
    options = [f"{key}={value}" for key, value in settings.items() if "." in key]
    options += ["engine.name=bandit", "model=bandit", f"directory={tmp_path}"]
    options += [f'plugins=["{settings["plugins"][0]}"]']
    line = [part for option in options for part in ("--set", option)]
    code = "from agl_compat import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "--config", str(file), *line],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "run run: 2 steps" in done.stdout
    assert "today's name is agl" in done.stderr


def test_each_name_warns_once_with_todays_name():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            agl_compat.Agent("a")
            agl_compat.LightningStore()
    assert [str(each.message).split(" (docs")[0].split("; ")[1] for each in caught] == [
        "today's name is a plain function run_agent(task)",
        "today's name is store.name and store.url of a run file",
    ]
