from __future__ import annotations

from agl_gepa._records import records
from agl_prompts import Seen, SeenCall
from hypothesis import given
from hypothesis import strategies as st

from agl_core.interfaces import TunedPrompt
from agl_core.types import FailureKind, Task

TEXT = "You are the writer."
PROMPT = TunedPrompt(name="writer", agents=("writer", "wr*er of *"), text=TEXT)


def call(*messages, agent="writer", answer="The pen costs 2 euro.", **fields):
    return SeenCall(agent=agent, messages=list(messages), answer=answer, **fields)


def said(content, role="user", **fields):
    return {"role": role, "content": content, **fields}


def result(*calls, score=0.5, why="the unit is missing", **fields):
    fields = {"scores": (score,), **fields}
    return Seen(task=Task(id="t", input="A pen?"), score=score, why=why, calls=calls, **fields)


def of(*seen, text=TEXT, max_chars=4000):
    return [each["Rollout"] for each in records(PROMPT, text, seen, max_chars=max_chars)]


def test_a_record_has_what_the_agent_got_said_and_earned():
    (record,) = of(result(call(said(TEXT, "system"), said("What is a pen?"))))
    for part in ("What is a pen?", "The pen costs 2 euro.", "the unit is missing", "0.5"):
        assert part in record


def test_only_calls_of_agents_of_the_prompt_are_shown():
    other = call(said("secret"), agent="planner")
    globbed = call(said("tea?"), agent="writer of tea")
    (record,) = of(result(other, globbed), result(other))
    assert "secret" not in record
    assert "tea?" in record


def test_the_current_text_is_not_repeated_and_what_stands_around_it_is_shown():
    parts = [{"type": "text", "text": f"Rules. {TEXT}", "cache_control": {"type": "ephemeral"}}]
    seen = result(call(said(TEXT + "\nToday is Monday.", "developer"), said(parts, "system")))
    (record,) = of(seen)
    assert TEXT not in record
    assert "Today is Monday." in record
    assert "Rules." in record
    assert record.count("[the current instructions]") == 2
    assert seen.calls[0].messages[0]["content"].startswith(TEXT), "the result is unchanged"


def test_a_current_text_with_placeholders_is_recognised_by_what_stands_around_them():
    text = "Answer {question} about {item}."
    prompt = TunedPrompt(
        name="writer", agents=("*",), text=text, placeholders=frozenset({"question", "item"})
    )
    filled = "First. Answer how much about a pen. Last."
    seen = result(call(said(filled, "system"), said("Answer how much")))
    (record,) = records(prompt, text, [seen], max_chars=4000)
    assert "First. [the current instructions] Last." in record["Rollout"]
    assert "Answer how much" in record["Rollout"], "another message is unchanged"


def test_a_text_of_placeholders_alone_replaces_nothing():
    prompt = TunedPrompt(
        name="writer", agents=("*",), text="{all}", placeholders=frozenset({"all"})
    )
    (record,) = records(prompt, "{all}", [result(call(said("one")))], max_chars=4000)
    assert "[the current" not in record["Rollout"]


def test_a_call_that_continues_another_contains_it():
    first = [said("one")]
    later = [*first, said("answer", "assistant"), said("two")]
    (record,) = of(result(call(*first), call(*later)))
    assert record.count("one") == 1
    assert "two" in record


def test_conversations_side_by_side_are_all_shown():
    (record,) = of(result(call(said("one")), call(said("two")), call(said("two"))))
    assert (record.count("one"), record.count("two")) == (1, 2)


def test_results_that_were_lost_are_left_out():
    lost = result(call(said("two")), failure=FailureKind.LOST, scores=())
    assert len(of(result(call(said("one"))), lost)) == 1


def test_an_empty_text_replaces_nothing():
    (record,) = of(result(call(said("one"))), text="")
    assert "[the current" not in record


@given(st.text(), st.integers(200, 400), st.integers(1, 4))
def test_a_record_is_not_longer_than_its_limit(text, max_chars, n):
    calls = [call(said(text * 50 + str(i)), answer=text * 30) for i in range(n)]
    (record,) = of(result(*calls, why=text * 40), max_chars=max_chars)
    assert len(record) <= max_chars
