"""What the filter leaves of an attempt, and of what others read."""

from typing import Any

import msgspec
import pytest
from agl_privacy import Masker
from agl_privacy._filter import COUNTED, FILTERED, make_filter
from agl_testing.attempts import FROZEN, TRAINED, ScriptedAttempt

from agl_core import semconv
from agl_core.adapters import TrajectoryAdapter
from agl_core.errors import ConfigError
from agl_core.interfaces import AdaptedAttempt, AttemptRecord
from agl_core.types import Choice

MAIL = "john@example.com"
CLEAN = [{"role": "user", "content": "hi"}]
HELD = [{"role": "user", "content": MAIL}]


def filtered(record: AttemptRecord, **section: Any) -> AdaptedAttempt:
    adapted = TrajectoryAdapter(["a", "b"], policies=[FROZEN, TRAINED]).adapt(record)
    return make_filter(section).adapted(record, adapted)


def three(*messages: Any, **fields: Any) -> ScriptedAttempt:
    """Three calls of one conversation, the later ones with the tokens of the earlier ones."""
    script = ScriptedAttempt("1")
    prompt = [1]
    for number, each in enumerate(messages):
        script.call("a", prompt, [10 + number], messages=each, **fields)
        prompt = [*prompt, 10 + number, 20 + number]
    script.reward(1.0)
    return script


def test_a_path_ends_with_its_last_call_that_stays() -> None:
    adapted = filtered(three(CLEAN, CLEAN, HELD).record())
    (path,) = adapted.trajectories["a"]
    assert list(path.token_ids) == [1, 10, 20, 11]
    assert list(path.call_index) == [-1, 0, -1, 1]
    assert [call.ordinal for call in path.calls] == [0, 1]
    assert list(path.logprobs)[0::2] == [0.0, 0.0]
    assert adapted.returns["a"].value == adapted.score == 1.0
    assert adapted.losses.counts == {FILTERED: 1}


def test_tokens_of_a_call_inside_become_context() -> None:
    adapted = filtered(three(CLEAN, HELD, CLEAN).record())
    (path,) = adapted.trajectories["a"]
    assert list(path.token_ids) == [1, 10, 20, 11, 21, 12]
    assert list(path.call_index) == [-1, 0, -1, -1, -1, 1]
    assert list(path.logprobs)[3] == 0.0
    assert [call.ordinal for call in path.calls] == [0, 2]


def test_an_agent_without_another_call_has_no_return() -> None:
    script = three(HELD)
    script.call("b", [1], [2], messages=CLEAN)
    adapted = filtered(script.record())
    assert set(adapted.trajectories) == set(adapted.returns) == {"b"}
    assert adapted.score == 1.0


def test_rewards_for_a_call_go_with_it() -> None:
    script = ScriptedAttempt("1")
    first = script.call("a", [1], [2], messages=CLEAN)
    second = script.call("a", [1, 2], [3], messages=HELD)
    several = script.call("a", [5], [6], [7], messages=HELD)
    script.reward(1.0)
    script.reward(0.25, call=first)
    script.reward(0.5, call=second)
    script.reward(2.0, call=several, choice=1)
    adapted = filtered(script.record())
    assert adapted.returns["a"].calls == {first: 0.25}
    assert adapted.returns["a"].choices == {}
    assert adapted.returns["a"].value == 1.0
    assert adapted.losses.counts[FILTERED] == adapted.losses.counts["rewards_of_dropped_calls"] == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "description": MAIL}}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": f"to {MAIL}"}]}]},
        {"messages": [{"role": "user", "content": '{"m": "\\u006aohn\\u0040example.com"}'}]},
        {"choices": {"text": MAIL}},
        {"choices": {"reasoning": MAIL}},
        {"choices": {"refusal": MAIL}},
        {"choices": {"tool_calls": [{"function": {"arguments": f'{{"m": "{MAIL}"}}'}}]}},
        {"choices": {"function_call": {"name": "f", "arguments": MAIL}}},
    ],
)
def test_it_is_found_in_every_part_of_a_call(fields: dict[str, Any]) -> None:
    choice = Choice(token_ids=[2], logprobs=[-0.1], finish_reason="stop", text="ok")
    if "choices" in fields:
        fields = {"choices": [msgspec.structs.replace(choice, **fields["choices"])]}
    script = ScriptedAttempt("1")
    script.call("a", [1], [2], **fields)
    script.call("b", [1], [2], messages=CLEAN)
    script.reward(1.0)
    assert filtered(script.record()).losses.counts == {FILTERED: 1}


def test_images_are_not_read() -> None:
    url = "data:image/png;base64,a@b.com+49170123456"
    given = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    assert not Masker().holds(given)
    assert make_filter({}).cleaned(given, "imitation") == given


def test_a_call_whose_text_was_masked_counts_too() -> None:
    script = three(CLEAN)
    script.spans = [
        msgspec.structs.replace(span, attributes={semconv.AGL_MASKED: True})
        for span in script.spans
    ]
    assert filtered(script.record()).losses.counts == {FILTERED: 1}


def test_other_policies_change_nothing() -> None:
    counted = filtered(three(CLEAN, HELD).record(), reinforcement="count")
    assert len(counted.trajectories["a"][0].calls) == 2
    assert counted.losses.counts == {COUNTED: 1}
    assert filtered(three(CLEAN, HELD).record(), reinforcement="off").losses.counts == {}


@pytest.mark.parametrize("use", ["imitation", "reflection", "events"])
def test_each_use_has_a_switch(use: str) -> None:
    assert make_filter({}).cleaned(HELD, use) == [{"role": "user", "content": "j***@e*****e.com"}]
    assert make_filter({use: False}).cleaned(HELD, use) is HELD


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.reinforcement"):
        make_filter({"reinforcement": "mask"})
