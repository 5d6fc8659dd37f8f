"""Token paths as messages: every sampled answer is sampled once, in the form it was sampled in."""

from __future__ import annotations

import pytest
from agl_records._conversations import answer_message, calls_by_id, conversations
from agl_testing.attempts import TRAINED, ScriptedAttempt
from hypothesis import given
from hypothesis import strategies as st

from agl_core.adapters import (
    AgentSelector,
    join,
    link,
    trajectories,
)
from agl_core.types import Choice

SYSTEM = {"role": "system", "content": "Be brief."}
TOOL_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "lookup", "arguments": '{"item": "mug"}'},
}


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


class Chat:
    """An agent's calls whose tokens go on from each other."""

    def __init__(self):
        self.script = ScriptedAttempt()
        self.ids = [1]

    def call(self, messages, *texts, rewards=(), tools=(), tool_calls=(), **fields):
        choices = [
            Choice(
                index=index,
                token_ids=[100 * len(self.ids) + index, 7],
                logprobs=[-0.5, -0.25],
                text=text,
                tool_calls=list(tool_calls),
                finish_reason="stop",
            )
            for index, text in enumerate(texts)
        ]
        call = self.script.call(
            "writer",
            list(self.ids),
            *([0] for _ in texts),
            messages=messages,
            tools=list(tools),
            choices=choices,
            **fields,
        )
        self.ids += [*choices[0].token_ids, 50]
        for choice in rewards:
            self.script.reward(1.0, call=call, choice=choice)
        return call

    def paths(self):
        record = self.script.record()
        joined = join(record, agents=AgentSelector(["writer"]), policies=[TRAINED])
        aimed = {
            (span.reward.target.call, span.reward.target.choice): 1.0
            for span in record.spans
            if span.reward is not None
        }
        return trajectories(link(joined.calls), rollout=record.rollout, rewards=aimed)

    def examples(self, **options):
        calls = calls_by_id(span.call for span in self.script.spans if span.call is not None)
        return [
            found.weighted()
            for path in self.paths()
            for found in conversations(path, calls, **options)
        ]


def test_turns_become_one_conversation_with_a_weight_on_what_was_sampled():
    chat = Chat()
    shown = said("An example.")
    chat.call([SYSTEM, user("a"), shown, user("b")], "B")
    chat.call([SYSTEM, user("a"), shown, user("b"), said("B"), user("c")], "C")

    (example,) = chat.examples()

    assert example == {
        "messages": [
            SYSTEM,
            user("a"),
            {**shown, "weight": 0},
            user("b"),
            {**said("B"), "weight": 1},
            user("c"),
            {**said("C"), "weight": 1},
        ]
    }


def test_tool_calls_keep_their_wire_form_and_tools_are_told():
    tools = [{"type": "function", "function": {"name": "lookup", "parameters": {"$ref": "#/x"}}}]
    result = {"role": "tool", "tool_call_id": "call_1", "content": "83"}
    chat = Chat()
    chat.call([user("a mug?")], "", tools=tools, tool_calls=[TOOL_CALL])
    # What the client sends back has other blanks, and no content at all.
    spaced = {**TOOL_CALL, "function": {"name": "lookup", "arguments": '{"item":"mug"}'}}
    back = {"role": "assistant", "tool_calls": [spaced]}
    chat.call([user("a mug?"), back, result], "83 pounds", tools=tools)

    (example,) = chat.examples()

    assert example["tools"] == tools
    assert [message.get("weight") for message in example["messages"]] == [None, 1, None, 1]
    assert example["messages"][1]["tool_calls"] == [spaced]


@pytest.mark.parametrize(
    "again",
    [
        [SYSTEM, user("a\nb"), user("c")],
        [user("a"), said("changed"), user("c")],
        [user("a")],
        [user("a"), user("B"), user("c")],
    ],
)
def test_messages_that_do_not_go_on_begin_another_conversation(again):
    chat = Chat()
    chat.call([user("a")], "B")
    chat.call(again, "C")

    first, second = chat.examples()

    assert first["messages"] == [user("a"), {**said("B"), "weight": 1}]
    assert second["messages"][-1] == {**said("C"), "weight": 1}
    assert sum(message.get("weight", 0) for message in second["messages"]) == 1


def test_other_tools_begin_another_conversation():
    chat = Chat()
    chat.call([user("a")], "B", tools=[{"type": "function", "function": {"name": "x"}}])
    chat.call([user("a"), said("B"), user("c")], "C")

    assert ["tools" in example for example in chat.examples()] == [True, False]


def test_text_in_parts_is_the_text():
    parts = {"role": "assistant", "content": [{"type": "text", "text": "B"}]}
    chat = Chat()
    chat.call([user("a")], "B")
    chat.call([user("a"), parts, user("c")], "C")

    assert len(chat.examples()) == 1


def test_of_several_choices_the_one_that_went_on_and_rewarded_ones_are_taken():
    chat = Chat()
    chat.call([user("a")], "B", "not B")
    chat.call([user("a"), said("B"), user("c")], "C", "D", rewards=[1])

    texts = [example["messages"][-1]["content"] for example in chat.examples()]
    every = [example["messages"][-1]["content"] for example in chat.examples(unused=True)]

    assert sorted(texts) == ["B", "D"]
    assert sorted(every) == ["C", "D", "not B"]


def test_what_was_thought_is_kept_and_nothing_is_empty_text():
    thought = answer_message(Choice(text="B", reasoning="hm"))
    assert thought == {"role": "assistant", "content": "B", "reasoning_content": "hm"}
    assert answer_message(Choice()) == said("")
    assert answer_message(Choice(tool_calls=[TOOL_CALL]))["content"] is None


def test_the_last_try_of_a_call_is_the_call():
    script = ScriptedAttempt()
    for tries, superseded in ((2, False), (1, False), (3, True)):
        script.call("writer", [1], [2], id="ca", tries=tries, superseded=superseded)
    calls = [span.call for span in script.spans if span.call is not None]
    assert [call.tries for call in calls_by_id(calls).values()] == [2]
    assert calls_by_id(calls[2:]) == {}


@given(
    turns=st.lists(st.sampled_from(["goes on", "edited"]), max_size=5),
    texts=st.lists(st.text(max_size=3), min_size=6, max_size=6),
)
def test_every_answer_is_sampled_exactly_once(turns, texts):
    chat = Chat()
    messages = [user("?")]
    chat.call(messages, texts[0])
    for turn, before, text in zip(turns, texts, texts[1:], strict=False):
        kept = messages if turn == "goes on" else [*messages[:-1], user("edited")]
        messages = [*kept, said(before), user("?")]
        chat.call(messages, text)

    answers = [
        message["content"]
        for example in chat.examples()
        for message in example["messages"]
        if message.get("weight")
    ]

    assert answers == texts[: len(turns) + 1]
