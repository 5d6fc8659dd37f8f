"""Attempts of a stored run: which are left out, and under which cause."""

from __future__ import annotations

import msgspec
import pytest
from agl_imitation._sft import SFTOptions
from agl_imitation._stored import Selection, _Reading, read_run
from agl_testing.attempts import FROZEN, TRAINED, ScriptedAttempt
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agl_core import semconv
from agl_core.adapters import AgentSelector, TrajectoryAdapter
from agl_core.config.validation import validate
from agl_core.errors import ConfigError
from agl_core.interfaces import AttemptRecord
from agl_core.types import AttemptStatus, Failure, FailureKind


def read(records, **selection):
    """The attempts that are chosen, and the losses."""
    chosen = Selection(agents=("a",), **selection)
    adapter = TrajectoryAdapter(["a"], policies=[FROZEN, TRAINED])
    reading = _Reading(chosen, AgentSelector(chosen.agents), adapter.adapt)
    for record in records:
        reading.add(record)
    items = reading.best()
    return [item.returns[0].attempt_id for item in items], reading.losses.counts


def attempt(name, reward, *, group="group"):
    script = ScriptedAttempt(name, group=group)
    script.call("a", [1, 2], [3, 4])
    script.call("b", [1, 2], [5])
    if reward is not None:
        script.reward(reward)
    return script


def test_the_chosen_agents_calls_are_taken_with_their_tokens():
    chosen = Selection(agents=("a",))
    adapter = TrajectoryAdapter(["a"], policies=[FROZEN, TRAINED])
    reading = _Reading(chosen, AgentSelector(chosen.agents), adapter.adapt)
    reading.add(attempt("1", 1.0).record())
    (group,) = reading.best()
    assert group.agent == "a"
    assert [list(path.token_ids) for path in group.trajectories[0]] == [[1, 2, 3, 4]]


class Hides:
    """A filter that replaces a word."""

    def cleaned(self, value, use):
        assert use == "imitation"
        return msgspec.json.decode(msgspec.json.encode(value).replace(b"secret", b"***"))


def test_agents_whose_texts_a_filter_changes_are_rendered_again_from_what_it_leaves():
    script = ScriptedAttempt("1")
    for agent, said in (("a", "a secret"), ("b", "nothing")):
        script.call(agent, [1, 2], [3], messages=[{"role": "user", "content": said}])
        (choice,) = script.spans[-1].call.choices
        call = replace(script.spans[-1].call, choices=[replace(choice, text=f"said {said}")])
        script.spans[-1] = replace(script.spans[-1], call=call)
    script.reward(1.0, agent="a")
    script.reward(0.5, agent="b")
    record = script.record()
    adapter = TrajectoryAdapter(["a", "b"], policies=[FROZEN, TRAINED])

    def items(record):
        chosen = Selection(agents=("a", "b"), min_reward=0.4)
        reading = _Reading(chosen, AgentSelector(chosen.agents), adapter.adapt, [Hides()])
        reading.add(record)
        return {item.agent: item for item in reading.best()}, reading.losses.counts

    found, losses = items(record)
    assert found["a"].messages == [
        {"role": "user", "content": "a ***"},
        {"role": "assistant", "content": "said a ***"},
    ]
    assert list(found["b"].trajectories[0][0].token_ids) == [1, 2, 3]
    assert losses == {"conversations_cleaned": 1, "calls_rendered_again": 1}
    spans = [replace(span, attributes={semconv.AGL_MASKED: True}) for span in record.spans]
    found, losses = items(
        AttemptRecord(rollout=record.rollout, attempt=record.attempt, spans=spans)
    )
    assert losses == {"conversations_cleaned": 1, "calls_rendered_again": 2}


def test_attempts_are_left_out_by_cause():
    failure = Failure(kind=FailureKind.AGENT, message="boom", type="ValueError")
    records = [
        attempt("1", 1.0).record(),
        attempt("2", 0.0).record(),
        attempt("3", 1.0).record(status=AttemptStatus.FAILED, failure=failure),
        attempt("4", None).record(),
    ]
    assert read(records, min_reward=0.5) == (
        ["at_1"],
        {
            "attempts_below_min_reward": 1,
            "attempts_failed": 1,
            "attempts_without_reward": 1,
        },
    )


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 3)), max_size=8), st.integers(1, 3)
)
def test_the_best_of_each_group_are_kept(rewards, keep):
    records = [
        attempt(str(index), float(reward), group=group).record()
        for index, (group, reward) in enumerate(rewards)
    ]
    chosen, losses = read(records, keep=keep)
    kept = [int(name.removeprefix("at_")) for name in chosen]
    assert kept == sorted(kept)
    for name in {group for group, _ in rewards}:
        values = sorted((reward for group, reward in rewards if group == name), reverse=True)
        found = sorted((rewards[at][1] for at in kept if rewards[at][0] == name), reverse=True)
        assert found == values[:keep]
    assert losses.get("attempts_not_kept", 0) == len(rewards) - len(kept)


@pytest.mark.parametrize("option", [{"keep": 1}, {"min_reward": 0.0}, {"agents": ["a"]}])
def test_a_selection_without_runs_is_refused(option):
    with pytest.raises(ConfigError, match="select from runs, but there are none"):
        validate(SFTOptions, {"data": ["a"], **option}, where="algorithm")


async def test_a_target_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"is not a run's directory|holds no"):
        await read_run(str(tmp_path / "none"), Selection(agents=("a",)))
