"""A calculator behind a real MCP server, the AutoGen agent that uses it, and its training."""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import signal
import sys
from pathlib import Path

import pytest
from agl_testing.fake_openai import FakeOpenAI, FakeReply
from autogen_ext.tools.mcp import StdioServerParams

from tests.programs.running import ROOT, imported, started, train

FOLDER = ROOT / "examples" / "14_calculator"
OWN = ("program", "calculator", "server", "problems", "run_agent", "make_model", "check")
FEW = ("train.steps=2", "train.tasks_per_step=2", "algorithm.group_size=4")


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in OWN:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in OWN:
        sys.modules.pop(name, None)


@pytest.fixture
def program(load):
    return load("program")


def calls(*expressions):
    made = [{"name": "calculate", "arguments": {"expression": each}} for each in expressions]
    return FakeReply(tool_calls=made)


def solve(program, monkeypatch, *answers, questions=1):
    """Solve questions one after another; return texts or errors, and the requests' messages.

    ``answers`` are the model's, in order; one that is a function is called for it.
    """
    given = iter(answers)

    def script(body):
        answer = next(given)
        return answer() if callable(answer) else answer

    async def run():
        texts = []
        for number in range(questions):
            try:
                texts.append(await program.solve(f"Question {number}"))
            except sys.modules["calculator"].CalculatorError as error:
                texts.append(f"failed: {error}")
        await sys.modules["calculator"].close()
        await program.client().close()
        return texts

    with FakeOpenAI(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        texts = asyncio.run(run())
    return texts, [each.body["messages"] for each in server.log]


def servers():
    """Ids of the calculators that this process runs."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    found = []
    for child in children.read_text().split():
        line = Path(f"/proc/{child}/cmdline")
        if line.exists() and b"server.py" in line.read_bytes():
            found.append(int(child))
    return found


def kill_server():
    (server,) = servers()
    os.kill(server, signal.SIGKILL)
    return calls("1 + 1")


def test_the_program_does_not_know_that_it_is_trained():
    for name in ("program.py", "calculator.py", "server.py", "problems.py"):
        assert not {each for each in imported(FOLDER / name) if each.startswith("agl")}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("((12 + 5) * 3) - 4", "47"),
        ("17 / 3", "5.66666666667"),
        (" -2 ** 2 ", "-4"),
        ("7 // 2 + 7 % 2", "4"),
        ("2 ** 0.5", "1.41421356237"),
        ("-" * 99 + "1", "-1"),
    ],
)
def test_the_calculator_computes(load, expression, value):
    assert load("server").calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("9**9**9", "exponent"),
        ("10 ** 14 * 10 ** 14", "larger than 1e\\+15"),
        ("1e999", "larger"),
        ("1.5e14 ** 64", "too large"),
        ("1 / 0", "division by zero"),
        ("5 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("(-8) ** 0.5", "not a real number"),
        ("True", "not allowed"),
        ("1j", "not allowed"),
        ("'a' * 99", "not allowed"),
        ("x", "not allowed"),
        ("__import__('os').getpid()", "not allowed"),
        ("[1] * 9", "not allowed"),
        ("1,000", "not allowed"),
        ("2 ^ 3", "not allowed"),
        ("12 plus 5", "not an expression"),
        ("", "not an expression"),
        ("\0", "not an expression"),
        ("(" * 99 + "1", "not an expression"),
        ("1 + " * 100 + "1", "401 characters"),
    ],
)
def test_what_cannot_be_computed_is_an_error_that_says_so(load, expression, error):
    server = load("server")
    with pytest.raises(server.ToolError, match=error):
        server.calculate(expression)


@pytest.mark.parametrize(
    ("text", "value", "right"),
    [
        ("Answer: 42", 42, True),
        ("It is so.\nAnswer: 5.67\n", 17 / 3, True),
        ("Answer: 42.01", 42, True),
        ("Answer: 42.02", 42, False),
        ("Answer: -3.50", -3.5, True),
        ("Answer: 1,234.", 1234, True),
        ("Answer: 1.2e3", 1200, True),
        ("Answer: 42 litres", 42, False),
        ("Answer: forty-two", 42, False),
        ("Answer: nan", 42, False),
        ("Answer: 1e999", 42, False),
        ("Answer:", 42, False),
        ("42", 42, False),
        ("", 42, False),
        ("Answer: 42\nI hope this helps.", 42, False),
        ("Answer: 41\nAnswer: 42", 42, False),
        ("Answer: 42\nAnswer: 42", 42, False),
    ],
)
def test_an_answer_is_one_marked_number_in_the_last_line(load, text, value, right):
    score, why = load("problems").judge(text, value)
    assert score == float(right)
    assert why


@pytest.mark.parametrize(
    ("text", "right"),
    [("Answer: B", True), ("Answer: (b)", True), ("Answer: C", False), ("Answer: 12", False)],
)
def test_where_there_are_options_the_letter_counts(load, text, right):
    assert load("problems").judge(text, 12.0, "B")[0] == float(right)


def test_every_drawn_problem_is_solved_by_its_expression(load):
    problems, server = load("problems"), load("server")
    chance = random.Random(0)
    for number in range(300):
        drawn = problems.draw(chance, options=number % 2 == 1)
        result = server.calculate(drawn.expression)
        assert problems.judge(f"Answer: {result}", drawn.value)[0] == 1.0
        assert bool(drawn.letter) == bool(number % 2)
        if drawn.letter:
            options = dict(zip("ABCD", drawn.question.split(") ")[1:], strict=True))
            assert float(options[drawn.letter].split()[0]) == pytest.approx(drawn.value)
            assert len({each.split()[0] for each in options.values()}) == 4


def test_tasks_are_the_same_each_time_and_held_out_ones_are_others(load):
    tasks = load("run_agent")
    assert tasks.train_tasks() == tasks.train_tasks()
    seen = {task.input["question"] for task in tasks.train_tasks()}
    held_out = {task.input["question"] for task in tasks.held_out_tasks()}
    assert len(held_out) >= 190
    assert not seen & held_out
    assert sum(bool(task.input["letter"]) for task in tasks.mixed_train_tasks()) == 256


def test_the_model_reads_what_the_server_computed(program, monkeypatch):
    (text,), (_, second) = solve(program, monkeypatch, calls("17 / 3"), "Answer: 5.67")
    assert text == "Answer: 5.67"
    assert second[-1]["role"] == "tool"
    assert second[-1]["content"] == "5.66666666667"


def test_one_server_serves_the_problems_of_a_loop(program, monkeypatch):
    seen = []

    def note():
        seen.append(servers())
        return calls("1 + 1", "2 + 2")

    texts, _ = solve(program, monkeypatch, note, "one", note, "two", questions=2)
    assert texts == ["one", "two"]
    assert len(seen[0]) == 1
    assert seen[0] == seen[1]
    assert not servers()


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("calculate", "{}", "Field required"),
        ("calculate", '{"expression": "1 / 0"}', "division by zero"),
        ("calculate", '{"expression": "9**9**9"}', "exponent"),
        ("calculate", '{"expression": 12}', "valid string"),
        ("calculate", '{"expression": "2 + 2", "precision": 3}', "4"),
        ("calculate", '{"expression": ', "Expecting value"),
        ("compute", '{"expression": "2 + 2"}', "compute"),
    ],
)
def test_a_call_that_fails_is_a_text_to_the_model(program, monkeypatch, name, arguments, said):
    reply = FakeReply(tool_calls=[{"name": name, "arguments": arguments}])
    (text,), (_, second) = solve(program, monkeypatch, reply, "Answer: 0")
    assert text == "Answer: 0"
    assert said in second[-1]["content"]


@pytest.mark.parametrize("answer", ["", "Buy more rice!"])
def test_nonsense_is_the_answer_as_it_is(program, monkeypatch, answer):
    (text,), _ = solve(program, monkeypatch, answer)
    assert text == answer


def test_a_model_that_only_calls_the_tool_has_no_answer(program, monkeypatch):
    (text,), requests = solve(program, monkeypatch, *[calls("1 + 1")] * 3)
    assert text == ""
    assert len(requests) == 3


def test_a_server_that_dies_fails_its_problem_and_not_the_next(program, monkeypatch):
    (first, second, third), _ = solve(
        program,
        monkeypatch,
        kill_server,
        "Answer: 2",
        calls("2 + 2"),
        "Answer: 4",
        "no",
        questions=3,
    )
    assert first == f"failed: {sys.modules['calculator'].ENDED}"
    assert (second, third) == ("Answer: 4", "no")


def test_a_server_that_dies_before_the_model_is_asked_again(program, monkeypatch):
    def kill_after_the_call():
        kill_server()
        return "Answer: 2"

    (first, second), _ = solve(
        program,
        monkeypatch,
        calls("1 + 1"),
        kill_after_the_call,
        calls("2 + 2"),
        "four",
        questions=2,
    )
    assert (first, second) == ("Answer: 2", "four")


@pytest.mark.parametrize(
    "server",
    [
        StdioServerParams(command="/no/such/python", args=["server.py"]),
        StdioServerParams(command=sys.executable, args=["-c", "raise SystemExit('no')"]),
    ],
)
def test_a_server_that_cannot_be_started_is_an_error_that_names_it(program, monkeypatch, server):
    monkeypatch.setattr(sys.modules["calculator"], "SERVER", server)
    (error,), requests = solve(program, monkeypatch)
    assert f"does not start; run it by hand to see why: {server.command}" in error
    assert not requests


def test_the_shipped_model_copies_numbers_and_is_seldom_right(load):
    check = load("check")
    check.torch.manual_seed(0)
    found = check.measured(FOLDER / "model", 60)
    assert found["calls with the problem's numbers"] > 0.6
    assert 0.05 < found["calls with the right value"] < 0.5
    assert found["answers with the result"] > 0.9


def test_a_mistaken_expression_has_numbers_of_the_problem_and_another_value(load):
    made, check, problems = load("make_model"), load("check"), load("problems")
    chance = random.Random(0)
    for _ in range(300):
        problem = problems.draw(chance)
        wrong = made.mistaken(problem, chance)
        right = check.numbers(problem.expression)
        assert check.numbers(wrong) in (right, right[:-1])
        assert check.value(wrong) not in ("", check.value(problem.expression))


def test_the_shipped_model_has_learned_from_no_held_out_problem(load, monkeypatch):
    tasks, made, problems = load("run_agent"), load("make_model"), load("problems")
    known = [problems.draw(random.Random("held-out")), problems.draw(random.Random(1))]
    assert known[0].question == tasks.held_out_tasks()[0].input["question"]
    assert known[0].expression in made._held_out()
    drawn = iter(known)
    monkeypatch.setattr(problems, "draw", lambda _: next(drawn))
    assert made.drawn(random.Random(0)) is known[1]


@pytest.mark.parametrize("kind", ["numbers", "words", "signs", "problem"])
def test_a_drill_asks_to_copy_what_it_shows(load, kind):
    made, check = load("make_model"), load("check")
    for seed in range(20):
        ((message,), _, answer) = made.drill(random.Random(seed), kind)
        assert check.numbers(message["content"]) == check.numbers(answer)


def test_what_is_no_call_has_no_expression(load):
    check = load("check")
    assert check.expression('<tool_call>\n{"arguments": {"expression": "1 + 2"}}') == "1 + 2"
    for text in ("", "3", "[]", "{}", '{"arguments": "1 + 2"}', "<tool_call>"):
        assert check.expression(text) == ""
    assert [check.value(text) for text in ("1 + 2", "1 +", "")] == ["3", "", ""]


def test_a_check_without_a_model_is_refused_at_once(load, monkeypatch, capsys, tmp_path):
    check = load("check")
    monkeypatch.setattr(sys, "argv", ["check.py", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="2"):
        check.main()
    assert f"{str(tmp_path / 'none')!r} is no folder" in capsys.readouterr().err


def test_two_steps_train_the_solver(tmp_path):
    report = train(FOLDER, tmp_path, *FEW)
    assert set(report["agents"]) == {"solver"}
    assert [step["rollouts"] for step in report["steps"]] == [8, 8]
    assert report["calls"] >= 16


def test_a_run_without_a_server_says_why(tmp_path):
    agent = tmp_path / "broken.py"
    agent.write_text(
        f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\nimport calculator\n"
        "calculator.SERVER = calculator.SERVER.model_copy(update={'args': ['-c', 'pass']})\n"
        "from run_agent import *\n"
    )
    done = started(FOLDER, tmp_path, *FEW, "tasks.val=null", f"agent={agent}:run_agent")
    assert "CalculatorError" in done.stdout + done.stderr
    assert done.returncode != 0
