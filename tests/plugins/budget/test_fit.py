from __future__ import annotations

import asyncio
import json

import pytest
from agl_budget import PromptBudget
from agl_budget._plan import SHORTEST, clip, leaving
from hypothesis import given, settings
from hypothesis import strategies as st

from agl_core.errors import ConfigError, ContextOverflowError


def words(messages, tools=()) -> int:
    """A count like a chat template's: every text, and a few tokens around each message."""
    texts = [json.dumps(message) for message in messages]
    return sum(len(text) // 4 for text in texts) + len(json.dumps(list(tools))) // 4


def system(text="be brief"):
    return {"role": "system", "content": text}


def user(text="and now?"):
    return {"role": "user", "content": text}


def said(text="so"):
    return {"role": "assistant", "content": text}


def calls(*ids):
    asked = [
        {"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": asked}


def result(call_id, text="42"):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def fit(messages, tokens, **options):
    return PromptBudget(tokens, count=words).fit(messages, **options)


def test_a_prompt_that_fits_is_not_touched():
    messages = [system(), user(), said(), user()]
    fitted = PromptBudget(words(messages), count=words).plan(messages)
    assert all(one is other for one, other in zip(fitted.messages, messages, strict=True))
    assert not fitted.cut
    assert fitted.tokens == fitted.tokens_before == words(messages)


def test_whole_turns_leave_from_the_middle_the_oldest_first():
    messages = [system(), user("1"), said("a"), user("2"), said("b"), user("3")]
    assert fit(messages, words(messages) - 1) == [messages[0], *messages[3:]]
    least = [messages[0], messages[5]]
    assert fit(messages, words(least)) == least


def test_a_long_tool_loop_keeps_its_task_and_its_last_step():
    steps = [each for n in range(9) for each in (calls(f"c{n}"), result(f"c{n}", "x" * 99))]
    messages = [system(), user("task"), *steps]
    least = [*messages[:2], *messages[-2:]]
    assert fit(messages, words(least)) == least
    some = fit(messages, words(messages) // 2)
    assert some[:2] == messages[:2]
    assert some[2:] == messages[-len(some[2:]) :]


def test_several_results_of_one_call_stay_together():
    messages = [user("1"), calls("a", "b"), result("a"), result("b"), said("ok"), user("2")]
    for tokens in range(words([messages[-1]]), words(messages)):
        kept = fit(messages, tokens)
        assert (messages[1] in kept) == (messages[2] in kept) == (messages[3] in kept)


def test_a_result_that_comes_after_the_next_user_leaves_with_its_call():
    messages = [user("1"), calls("a"), user("wait"), result("a"), said("ok"), user("2")]
    assert leaving(messages) == [[0, 1, 3, 2, 4]]
    for tokens in range(words([messages[-1]]), words(messages)):
        kept = fit(messages, tokens)
        assert (messages[1] in kept) == (messages[3] in kept)


def test_call_ids_that_are_used_again_belong_to_the_call_before_them():
    messages = [user(), calls("c"), result("c", "1"), calls("c"), result("c", "2")]
    assert leaving(messages) == [[1, 2]]


def test_results_of_the_older_function_call_stay_with_it():
    asked = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    messages = [user("1"), asked, {"role": "function", "name": "f", "content": "42"}, user("2")]
    assert leaving(messages) == [[0, 1, 2]]


def test_a_result_without_its_call_is_a_message_like_others():
    messages = [result("lost"), user("1"), said(), user("2")]
    assert leaving(messages) == [[0], [1, 2]]


def test_later_system_messages_stay_where_they_are():
    messages = [system("a"), user("1"), said(), system("b"), user("2")]
    assert fit(messages, words([system("a"), system("b"), user("2")])) == [
        system("a"),
        system("b"),
        user("2"),
    ]


def test_long_texts_lose_their_middle_when_messages_are_not_enough():
    long = "begin " + "x" * 4000 + " end"
    messages = [system(), user("short"), calls("c"), result("c", long)]
    fitted = PromptBudget(200, count=words).plan(messages)
    assert fitted.messages[:3] == messages[:3]
    text = fitted.messages[3]["content"]
    assert text.startswith("begin x")
    assert text.endswith("x end")
    assert "characters left out" in text
    assert 190 <= fitted.tokens <= 200
    assert fitted.messages_cut == 0
    assert fitted.characters_cut == len(long) - len(text)


def test_text_parts_and_reasoning_are_texts_too():
    parts = [{"type": "text", "text": "y" * 900}, {"type": "image_url", "image_url": {"url": "u"}}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "ok", "reasoning_content": "z" * 900, "tool_calls": []},
    ]
    first, second = fit(messages, 180)
    assert len(first["content"][0]["text"]) < 400
    assert first["content"][1] is parts[1]
    assert len(second["reasoning_content"]) < 400
    assert parts[0]["text"] == "y" * 900


def test_what_has_to_stay_and_is_too_long_is_an_overflow_with_the_numbers():
    messages = [system("s" * 4000), user("1"), said(), user("2")]
    with pytest.raises(ContextOverflowError) as caught:
        PromptBudget(100, agent="writer", count=words).fit(messages)
    for part in ("'writer'", str(words(messages)), "100", str(words([messages[0], messages[3]]))):
        assert part in str(caught.value)


def test_tools_count():
    messages = [user("1"), said(), user("2")]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert fit(messages, words(messages), tools=tools) == messages[2:]


def test_nothing_fits_into_nothing():
    assert fit([], 1) == []
    with pytest.raises(ConfigError, match="holds no prompt"):
        PromptBudget(0)
    with pytest.raises(ContextOverflowError):
        fit([user("too long")], 1)


def test_outside_a_rollout_nothing_happens_without_a_count():
    messages = [user("x" * 1000)]
    assert PromptBudget(10).fit(messages) == messages
    assert asyncio.run(PromptBudget(10).afit(messages)) == messages
    assert PromptBudget().fit(messages) == messages


def test_a_count_needs_a_budget():
    with pytest.raises(ConfigError, match="max_tokens"):
        PromptBudget(count=words).fit([user()])


def test_an_async_count_is_awaited_by_afit_only():
    async def counting(messages, tools):
        return words(messages, tools)

    messages = [user("1"), said(), user("2")]
    budget = PromptBudget(words(messages) - 1, count=counting)
    assert asyncio.run(budget.afit(messages)) == messages[2:]
    with pytest.raises(ConfigError, match="afit"):
        budget.fit(messages)


texts = st.text("ab c\n", max_size=400)
turns = st.lists(
    st.one_of(
        texts.map(lambda text: [user(text)]),
        texts.map(lambda text: [said(text)]),
        texts.map(lambda text: [system(text[:20])]),
        st.tuples(st.sampled_from("abc"), texts).map(
            lambda pair: [calls(pair[0]), result(pair[0], pair[1])]
        ),
        st.tuples(texts, texts).map(
            lambda pair: [calls("x", "y"), result("x", pair[0]), result("y", pair[1])]
        ),
    ),
    max_size=9,
).map(lambda each: [message for turn in each for message in turn])


@given(messages=turns, tokens=st.integers(1, 500))
@settings(max_examples=150, deadline=None)
def test_whatever_the_history_it_fits_or_says_so(messages, tokens):
    budget = PromptBudget(tokens, count=words)
    try:
        fitted = budget.plan(messages)
    except ContextOverflowError:
        return
    assert words(fitted.messages) <= tokens
    assert fitted.messages == asyncio.run(budget.afit(messages))
    assert budget.fit(fitted.messages) == fitted.messages
    assert fitted.kept == sorted(set(fitted.kept))
    given_roles = [messages[at]["role"] for at in fitted.kept]
    assert [message["role"] for message in fitted.messages] == given_roles
    _keeps_what_it_must(messages, fitted)


def _keeps_what_it_must(messages, fitted):
    kept = set(fitted.kept)
    for at, message in enumerate(messages):
        if message["role"] == "system":
            assert fitted.messages[fitted.kept.index(at)] is message
    spoken = [at for at, message in enumerate(messages) if message["role"] != "system"]
    asked = [at for at, message in enumerate(messages) if message["role"] == "user"]
    assert kept >= {*spoken[-1:], *asked[-1:]}
    open_calls: dict[str, int] = {}
    for at, message in enumerate(messages):
        open_calls |= {call["id"]: at for call in message.get("tool_calls", ())}
        if message["role"] == "tool":
            assert (at in kept) == (open_calls[message["tool_call_id"]] in kept)
    for at, message in zip(fitted.kept, fitted.messages, strict=True):
        assert message.get("tool_calls") == messages[at].get("tool_calls")


@given(text=st.text(max_size=500), most=st.integers(SHORTEST, 300))
def test_a_clipped_text_is_no_longer_than_it_may_be(text, most):
    clipped = clip(text, most)
    assert len(clipped) <= most
    assert (clipped == text) == (len(text) <= most)
