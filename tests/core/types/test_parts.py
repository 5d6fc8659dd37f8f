from __future__ import annotations

import msgspec

from agl_core.thinking import Part
from agl_core.types import Choice, ModelCall, Rollout, Task, from_list, to_list


def call(*choices: Choice, **fields) -> ModelCall:
    return ModelCall(
        id="c", rollout_id="r", attempt_id="a", agent="writer", choices=list(choices), **fields
    )


def test_a_call_keeps_the_raw_text_and_tells_its_parts():
    raw = Choice(text="<think>hm</think>\n42", token_ids=[1, 2, 3])
    kept = call(raw, Choice(index=1, text="42", reasoning="hm"))
    assert kept.parts == [
        (Part("thinking", "hm"), Part("text", "\n42")),
        (Part("thinking", "hm"), Part("text", "42")),
    ]
    assert kept.choices[0] is raw


def test_the_tags_of_the_run_travel_with_the_call():
    kept = call(Choice(text="[THINK]hm[/THINK]42"), thinking_tags=("[THINK] [/THINK]",))
    again = msgspec.json.decode(
        msgspec.json.encode(kept, enc_hook=to_list), type=ModelCall, dec_hook=from_list
    )
    assert again.parts == [(Part("thinking", "hm"), Part("text", "42"))]


def rollout(**metadata) -> Rollout:
    return Rollout(id="r", task=Task(id="t"), run_id="run", metadata=metadata)


def test_a_rollout_tells_the_tags_and_budgets_of_its_run():
    assert rollout().thinking_tags == ("think", "thinking")
    assert rollout(thinking_tags=["r"]).thinking_tags == ("r",)
    budgets = {"writer": 300, "w*": 200, "*": 100}
    asked = {
        name: rollout(prompt_budgets=budgets).prompt_budget(name) for name in ("writer", "w", "")
    }
    assert asked == {"writer": 300, "w": 200, "": 100}
    assert rollout().prompt_budget("writer") is None
