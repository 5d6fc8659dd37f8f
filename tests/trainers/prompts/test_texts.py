"""New prompts out of answers, and results as text."""

from __future__ import annotations

import pytest
from agl_prompts import Seen, SeenCall, describe, new_text
from hypothesis import given
from hypothesis import strategies as st

from agl_core.types import FailureKind, Task


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("```\nNew {item}\n```", "New {item}"),
        ("Here it is:\n```text\nOne\n\nTwo\n```\nDone.", "One\n\nTwo"),
        ("```\nold\n```\nBetter:\n```\nnew\n```", "new"),
        ("````\nShow:\n```\ncode\n```\n````", "Show:\n```\ncode\n```"),
        ("```\nShow:\n```json\n{}\n```\nEnd\n```", "Show:\n```json\n{}\n```\nEnd"),
        ("<think>```\nno\n```</think>\n```\nyes\n```", "yes"),
        ("```\nunfinished", ""),
        ("No block at all", ""),
        ("The fence ``` inside a line ```", ""),
        ("", ""),
    ],
)
def test_the_new_text_is_the_last_block(answer, text):
    assert new_text(answer) == text


@given(
    st.text(alphabet=st.characters(exclude_characters="`\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"))
)
def test_any_text_without_fences_survives(text):
    assert new_text(f"```\n{text}\n```") == text.replace("</think>", "") or "</think>" in text


SEEN = Seen(
    task=Task(id="1", input={"question": "Where?"}, expected="Here"),
    score=0.25,
    failure=FailureKind.AGENT,
    why="the price is missing",
    calls=(
        SeenCall(
            agent="planner",
            messages=[{"role": "user", "content": "plan"}],
            answer="look it up",
        ),
        SeenCall(
            agent="writer",
            messages=[
                {"role": "system", "content": [{"type": "text", "text": "Write."}]},
                {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
            ],
            answer="",
            tool_calls=[{"id": "1", "function": {"name": "lookup", "arguments": "{}"}}],
            reward=0.5,
        ),
    ),
)


def test_a_result_shows_task_calls_score_and_reasons():
    shown = describe(SEEN)
    for part in (
        '{"question": "Where?"}',
        "Expected: Here",
        "'planner'",
        "look it up",
        "Write.",
        "lookup",
        "[reward] 0.5",
        "Score: 0.25",
        "agent",
        "the price is missing",
    ):
        assert part in shown


def test_only_calls_of_the_named_agents_are_shown():
    assert "look it up" not in describe(SEEN, agents=["w*"])
    assert "look it up" not in describe(SEEN, calls=1)


@given(st.integers(0, 2000), st.integers(0, 900), st.integers(0, 900), st.integers(0, 900))
def test_a_description_never_exceeds_its_length(most, task, answer, why):
    seen = Seen(
        task=Task(id="1", input="t" * task),
        score=1.0,
        why="w" * why,
        calls=(SeenCall(agent="a", messages=[], answer="c" * answer),),
    )
    shown = describe(seen, max_chars=most)
    assert len(shown) <= max(most, 2 * 3)
    if most >= task + answer + why + 100:
        assert "[...]" not in shown
