"""Breaks of conversations, counted per trained agent and likely cause."""

from __future__ import annotations

import pytest
from agl_doctor._continuity import _shared, breaks
from agl_testing.attempts import FROZEN, TRAINED, CallOptions, ScriptedAttempt
from hypothesis import given
from hypothesis import strategies as st

from agl_core.adapters import TrajectoryAdapter
from agl_core.types.run import sum_breaks

USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": ""}


def diagnosed(script, *agents):
    """Return the breaks of an attempt and its trajectories."""
    record = script.record()
    adapted = TrajectoryAdapter(agents or ["*"], policies=[TRAINED, FROZEN]).adapt(record)
    return breaks(record, adapted), adapted.trajectories


def talk(agent="writer", *, second, run="run", **fields):
    script = ScriptedAttempt()
    options = CallOptions(run=run)
    script.call(agent, [1, 2], [3], options=options, messages=[USER], **fields)
    messages = [USER, SAID, USER]
    script.call(agent, second, [9], options=options, messages=messages, **fields)
    script.reward(1.0)
    return script


def test_a_prompt_that_goes_on_breaks_nothing():
    assert diagnosed(talk(second=[1, 2, 3, 4]))[0] == {}


def test_a_prompt_that_does_not_starts_a_path_and_is_counted_with_its_cause():
    found, trajectories = diagnosed(talk(second=[1, 2, 7, 4]))
    assert found == {"writer": {"tokens": 1}}
    assert len(trajectories["writer"]) == 2
    assert diagnosed(talk(second=[1, 7]))[0] == {"writer": {"template": 1}}


def test_agents_that_are_not_trained_are_not_counted():
    assert diagnosed(talk(second=[5]), "planner")[0] == {}
    assert diagnosed(talk(second=[5], policy="frozen"))[0] == {}


def test_runs_of_one_agent_are_conversations_of_their_own():
    script = ScriptedAttempt()
    for run in ("one", "two"):
        script.call("writer", [1, 2], [3], options=CallOptions(run=run), messages=[USER])
        script.call("writer", [5], [6], options=CallOptions(run=run), messages=[USER, SAID, USER])
    script.reward(1.0)
    assert diagnosed(script)[0] == {"writer": {"template": 2}}


def test_another_conversation_of_the_run_is_no_break():
    script = ScriptedAttempt()
    script.call("writer", [1, 2], [3], messages=[USER])
    script.call("writer", [5], [6], messages=[{"role": "user", "content": "bye"}])
    script.reward(1.0)
    assert diagnosed(script)[0] == {}


def see(script, prompt, response, url):
    """Record a call that shows the model an image, whose token has id 99."""
    shown = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    script.call("writer", prompt, response, messages=shown, image_token=99)


@pytest.mark.parametrize(("later", "found"), [("red", 0), ("blue", 1)])
def test_equal_ids_of_another_image_are_a_break(later, found):
    script = ScriptedAttempt()
    see(script, [1, 99, 2], [3], "data:red")
    see(script, [1, 99, 2, 3, 4], [5], f"data:{later}")
    script.reward(1.0)
    causes = diagnosed(script)[0].get("writer", {})
    assert sum(causes.values()) == found


def test_breaks_add_up_over_attempts_and_steps():
    assert sum_breaks([{"a": {"x": 1}}, {}, {"a": {"x": 2, "y": 1}, "b": {"x": 1}}]) == {
        "a": {"x": 3, "y": 1},
        "b": {"x": 1},
    }


ids = st.lists(st.integers(0, 2), max_size=30)


@given(common=ids, one=ids, other=ids)
def test_the_shared_part_is_found_by_halving(common, one, other):
    left, right = [*common, *one], [*common, *other]
    shared = _shared(left, right)
    assert left[:shared] == right[:shared]
    assert shared >= len(common)
    assert shared in (len(left), len(right)) or left[shared] != right[shared]
