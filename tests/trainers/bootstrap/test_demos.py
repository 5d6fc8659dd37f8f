"""From the calls of an attempt to text in a prompt."""

import pytest
from agl_bootstrap._demos import Demo, apart, demo_of, with_demos, without_demos
from agl_prompts import Seen, SeenCall
from hypothesis import given
from hypothesis import strategies as st

from agl_core.types import FailureKind, PromptTemplate, Task
from tests.trainers.toy_phase import tuned

USER = {"role": "user", "content": "How much is the red lamp?"}
LOOKED_UP = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "1", "function": {"name": "lookup", "arguments": '{"item": "red lamp"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": '{"price": 12}'}


def call(agent="writer", answer="It costs 12.", messages=(USER,), **fields):
    system = {"role": "system", "content": "Answer."}
    return SeenCall(agent=agent, messages=[system, *messages], answer=answer, **fields)


def seen(*calls, score=1.0, **fields):
    fields.setdefault("scores", (score,))
    return Seen(task=Task(id="t0", input="lamp"), score=score, calls=calls, **fields)


def demo(result, *, threshold=1.0, max_chars=1000, form="messages", **prompt):
    return demo_of(result, tuned(**prompt), threshold=threshold, max_chars=max_chars, form=form)


def test_a_demonstration_has_question_tool_call_result_and_answer():
    found = demo(seen(call(messages=[USER, LOOKED_UP, RESULT])))
    assert found.text == (
        "Question: How much is the red lamp?\n"
        'Call: lookup({"item": "red lamp"})\n'
        'Result: {"price": 12}\n'
        "Answer: It costs 12."
    )


def test_parts_of_a_message_are_text_and_pictures_are_left_out():
    parts = [{"type": "text", "text": "How much?"}, {"type": "image_url", "image_url": {}}]
    found = demo(seen(call(messages=[{"role": "user", "content": parts}])))
    assert found.text == "Question: How much?\nAnswer: It costs 12."


def test_an_agent_that_only_calls_tools_is_demonstrated_by_its_call():
    wanted = LOOKED_UP["tool_calls"]
    assert demo(seen(call(answer="", tool_calls=wanted))).text.endswith(
        'Call: lookup({"item": "red lamp"})'
    )


def test_one_demonstration_per_attempt_the_last_call_of_equal_rewards():
    assert demo(seen(call(answer="1"), call(answer="2"), call("other", "3"))).text.endswith(": 2")


def test_the_call_with_the_highest_reward_of_its_own_is_the_demonstration():
    calls = call(answer="1", reward=2.0), call(answer="2"), call(answer="3", reward=-1.0)
    assert demo(seen(*calls)).text.endswith(": 1")


def test_agents_are_matched_by_globs():
    assert demo(seen(call("writer of tea")), agents=("writer of *",)).task_id == "t0"


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (seen(call(), score=0.99), "score"),
        (seen(call(), score=1.0, scores=(0.5, 1.5)), "score"),
        (seen(call(), failure=FailureKind.AGENT), "score"),
        (seen(call(), scores=()), "score"),
        (seen(call("other")), "calls"),
        (seen(call(answer="")), "calls"),
        (seen(call(answer="long " * 300)), "long"),
        (seen(call(answer="Dear {name}")), "braces"),
        (seen(call(answer="## Examples of correct answers")), "braces"),
    ],
)
def test_what_is_no_demonstration(result, cause):
    assert demo(result) == cause


def test_json_in_braces_is_kept():
    assert '{"a": {"b": 1}}' in demo(seen(call(answer='{"a": {"b": 1}}'))).text


def test_an_answer_alone_has_neither_question_nor_headings():
    wanted = LOOKED_UP["tool_calls"]
    answers = [
        demo(
            seen(call(messages=[USER, LOOKED_UP, RESULT], answer=" It costs 12.\n")), form="answer"
        ),
        demo(seen(call(answer="It costs 7.")), form="answer"),
        demo(seen(call(answer="It costs 12.")), form="answer"),
        demo(seen(call(answer="", tool_calls=wanted)), form="answer"),
    ]
    made = with_demos("Answer.", answers, max_chars=1000)
    assert made == (
        "Answer.\n\n## Examples of correct answers\n\n"
        'It costs 12.\nIt costs 7.\nlookup({"item": "red lamp"})'
    )
    assert without_demos(made) == "Answer."


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(
    texts,
    st.lists(texts, max_size=5),
    st.integers(0, 300),
    st.sampled_from(["messages", "answer"]),
)
def test_demonstrations_can_be_removed_and_never_exceed_the_limit(text, bodies, limit, form):
    demos = [Demo(task_id=str(i), text=each, score=1, form=form) for i, each in enumerate(bodies)]
    demos = [each for each in demos if not PromptTemplate(template=each.text).placeholders]
    made = with_demos(text, demos, max_chars=limit)
    assert len(made) <= len(text) + limit
    assert without_demos(made).rstrip() == text.rstrip()
    assert PromptTemplate(template=made).placeholders == PromptTemplate(template=text).placeholders


def test_a_demonstration_that_does_not_fit_makes_room_for_a_shorter_one():
    demos = [Demo(task_id="0", text="long " * 50, score=1), Demo(task_id="1", text="A: b", score=1)]
    assert with_demos("T", demos, max_chars=60).endswith("### Example 1\nA: b")


def test_tasks_apart_share_neither_id_nor_input():
    others = [Task(id="1", input={"a": 1, "b": 2}), Task(id="2")]
    given_ = [
        Task(id="1", input="x"),
        Task(id="8", input={"b": 2, "a": 1}),
        Task(id="9", input="y"),
        Task(id="10"),
    ]
    assert [task.id for task in apart(given_, others)] == ["9", "10"]
