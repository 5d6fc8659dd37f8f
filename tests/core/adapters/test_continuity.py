"""Breaks of conversations, counted per trained agent and likely cause."""

from __future__ import annotations

from agl_testing.attempts import FROZEN, TRAINED, CallOptions, ScriptedAttempt
from hypothesis import given
from hypothesis import strategies as st

from agl_core.adapters import TrajectoryAdapter
from agl_core.adapters._continuity import _shared
from agl_core.types.run import sum_breaks

USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": ""}


def adapted(script, *agents):
    return TrajectoryAdapter(agents or ["*"], policies=[TRAINED, FROZEN]).adapt(script.record())


def talk(agent="writer", *, second, run="run", **fields):
    script = ScriptedAttempt()
    options = CallOptions(run=run)
    script.call(agent, [1, 2], [3], options=options, messages=[USER], **fields)
    messages = [USER, SAID, USER]
    script.call(agent, second, [9], options=options, messages=messages, **fields)
    script.reward(1.0)
    return script


def test_a_prompt_that_goes_on_breaks_nothing():
    assert adapted(talk(second=[1, 2, 3, 4])).breaks == {}


def test_a_prompt_that_does_not_starts_a_path_and_is_counted_with_its_cause():
    found = adapted(talk(second=[1, 2, 7, 4]))
    assert found.breaks == {"writer": {"tokens": 1}}
    assert len(found.trajectories["writer"]) == 2
    assert adapted(talk(second=[1, 7])).breaks == {"writer": {"template": 1}}


def test_agents_that_are_not_trained_are_not_counted():
    assert adapted(talk(second=[5]), "planner").breaks == {}
    assert adapted(talk(second=[5], policy="frozen")).breaks == {}


def test_runs_of_one_agent_are_conversations_of_their_own():
    script = ScriptedAttempt()
    for run in ("one", "two"):
        script.call("writer", [1, 2], [3], options=CallOptions(run=run), messages=[USER])
        script.call("writer", [5], [6], options=CallOptions(run=run), messages=[USER, SAID, USER])
    script.reward(1.0)
    assert adapted(script).breaks == {"writer": {"template": 2}}


def test_another_conversation_of_the_run_is_no_break():
    script = ScriptedAttempt()
    script.call("writer", [1, 2], [3], messages=[USER])
    script.call("writer", [5], [6], messages=[{"role": "user", "content": "bye"}])
    script.reward(1.0)
    assert adapted(script).breaks == {}


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
