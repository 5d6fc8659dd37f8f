"""Replacing captured prompts in messages and tools."""

from __future__ import annotations

import copy
import json

import pytest
from agl_prompts._captured import NOT_FOUND, CapturedPrompt, RequestPrompts
from agl_prompts._captured_pattern import Pattern
from hypothesis import given
from hypothesis import strategies as st

from agl_core.interfaces import Identity
from agl_core.types import Losses, PromptTemplate

KNOWN = "You are the writer. Write one sentence."
NEW = "Name the price."
ASKED = {"role": "user", "content": f"{KNOWN} What is tea?"}
CACHED = {"cache_control": {"type": "ephemeral"}}


def prompt(template=NEW, known=KNOWN, agents=("writer",), tool=""):
    return PromptTemplate(template=template, known=known, agents=agents, tool=tool)


def identity(agent="writer", alias=""):
    return Identity(rollout_id="r", attempt_id="a", call_id="c", agent=agent, alias=alias)


def rewritten(messages, *prompts, agent="writer", alias="", tools=()):
    losses = Losses()
    before = copy.deepcopy((messages, [*tools]))
    given_tools = [*tools]
    sent = RequestPrompts(prompts or [prompt()])(
        identity(agent, alias), messages, given_tools, losses
    )
    assert (messages, given_tools) == before, "the client's request was modified"
    return *sent, losses.counts.get(NOT_FOUND, 0)


HEADS = [
    (KNOWN, NEW),
    (f"  {KNOWN}\n", f"  {NEW}\n"),
    (f"{KNOWN}\n\nToday is Monday.", f"{NEW}\n\nToday is Monday."),
    (
        f"Company rules.\n{KNOWN} Hand over when done.",
        f"Company rules.\n{NEW} Hand over when done.",
    ),
    ([{"type": "text", "text": KNOWN}], [{"type": "text", "text": NEW}]),
    (
        [{"type": "text", "text": KNOWN, **CACHED}, {"type": "text", "text": "To-dos", **CACHED}],
        [{"type": "text", "text": NEW, **CACHED}, {"type": "text", "text": "To-dos", **CACHED}],
    ),
    (
        [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": f"- {KNOWN}"}],
        [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": f"- {NEW}"}],
    ),
]


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize(("content", "expected"), HEADS)
def test_the_text_is_replaced_where_it_stands(role, content, expected):
    head = {"role": role, "name": "kept", "content": content}
    messages, _, lost = rewritten([head, ASKED])
    assert messages == [{"role": role, "name": "kept", "content": expected}, ASKED]
    assert [*messages[0]] == ["role", "name", "content"]
    assert messages[1] is ASKED
    assert lost == 0


def test_the_head_that_has_the_text_is_changed_and_no_other():
    other = {"role": "system", "content": "Be kind."}
    twice = {"role": "system", "content": KNOWN}
    messages, _, lost = rewritten([other, ASKED, twice, dict(twice)])
    assert messages == [other, ASKED, {"role": "system", "content": NEW}, twice]
    assert lost == 0


@pytest.mark.parametrize(
    "messages",
    [
        [ASKED],
        [{"role": "system", "content": "Another text."}, ASKED],
        [{"role": "system", "content": f"x{KNOWN}"}],
        [{"role": "system", "content": None}],
        [{"role": "system"}],
        [{"role": "system", "content": [{"type": "text"}, "odd", {"text": 3}]}],
        [{"role": "assistant", "content": KNOWN}, {"role": "user", "content": KNOWN}],
        [],
    ],
)
def test_an_unknown_text_stays_and_is_counted(messages):
    sent, _, lost = rewritten(messages)
    assert sent is messages
    assert lost == 1


@pytest.mark.parametrize(
    ("agent", "alias", "agents", "replaced"),
    [
        ("writer", "", ("writer",), True),
        ("planner", "", ("writer",), False),
        ("writer of tea", "", ("writer of *",), True),
        ("run-7", "writer", ("writer",), True),
        ("writer", "other", ("writer",), False),
        ("@summarizer", "", ("*",), False),
        ("@summarizer", "writer", ("writer",), False),
        ("", "", ("*",), False),
    ],
)
def test_the_named_agents_alone_are_concerned(agent, alias, agents, replaced):
    head = {"role": "system", "content": KNOWN}
    sent, _, lost = rewritten([head], prompt(agents=agents), agent=agent, alias=alias)
    assert sent == [{"role": "system", "content": NEW if replaced else KNOWN}]
    assert lost == 0


def test_an_agent_without_a_head_gets_one_first():
    messages, _, lost = rewritten([ASKED], prompt(known=""))
    assert messages == [{"role": "system", "content": NEW}, ASKED]
    assert lost == 0
    unchanged = [ASKED]
    assert rewritten(unchanged, prompt(known="", template=""))[0] is unchanged
    headed = [{"role": "developer", "content": "Its own."}, ASKED]
    sent, _, lost = rewritten(headed, prompt(known=""))
    assert sent is headed
    assert lost == 1


def test_of_two_prompts_for_one_agent_the_first_counts():
    head = {"role": "system", "content": KNOWN}
    sent, _, lost = rewritten([head], prompt(), prompt("Other.", agents=("*",)))
    assert sent[0]["content"] == NEW
    assert lost == 0


def test_values_are_read_from_the_text_and_filled_into_the_candidate():
    known = "You help {name}, aged {age}. {name} likes tea.\nToday is {day}"
    candidate = "It is {day}. Help {name} ({age}), and call them {name}. Keep {this}."
    text = "Rules.\nYou help Ann {age}, aged 5. Ann {age} likes tea.\nToday is Monday 1st\n\nMore."
    got = CapturedPrompt(prompt(candidate, known)).in_text(text)
    assert got == (
        "Rules.\nIt is Monday 1st. Help Ann {age} (5), and call them Ann {age}. Keep {this}.\n\nMore."
    )


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ("You help {name}. {name} likes tea.", "You help Ann. Bob likes tea."),
        ("Help {name}.", "Help"),
        ("Help {name}", "Help "),
        ("Help {name}", "Help \nAnn"),
        ("{name} is here", "\n is here"),
        ("{name}, {name}", "Ann, Anna"),
        ("Bee {x} keeper", "Frisbee the keeper"),
        ("the {x} cat", "the old cathedral"),
    ],
)
def test_other_texts_are_not_taken_for_the_known_one(known, text):
    assert Pattern(known).find(text) is None


def test_finding_needs_little_time_in_a_text_of_many_half_matches():
    names = "".join(f"a {{v{n}}} " for n in range(20))
    assert Pattern(f"{names}end").find("a " * 50_000) is None


TOOLS = [
    {"type": "function", "function": {"name": "other", "description": KNOWN}},
    {"type": "function", "function": {"description": KNOWN, "name": "look", "parameters": {}}},
]


def test_a_tools_description_is_replaced():
    ours = prompt(tool="look")
    head = {"role": "system", "content": KNOWN}
    messages, tools, lost = rewritten([head], ours, tools=TOOLS)
    assert messages == [head]
    expected = {"description": NEW, "name": "look", "parameters": {}}
    assert tools == [TOOLS[0], {"type": "function", "function": expected}]
    assert [*tools[1]["function"]] == ["description", "name", "parameters"]
    assert lost == 0


def test_system_prompt_and_tools_of_one_agent_are_replaced_each():
    head = {"role": "system", "content": KNOWN}
    both = [prompt("Find it.", tool="look"), prompt()]
    messages, tools, lost = rewritten([head], *both, tools=TOOLS)
    assert messages[0]["content"] == NEW
    assert tools[1]["function"]["description"] == "Find it."
    assert lost == 0


@pytest.mark.parametrize(
    ("described", "known", "expected", "lost"),
    [
        ({"description": "Another."}, KNOWN, {"description": "Another."}, 1),
        ({}, KNOWN, {}, 1),
        ({}, "", {"description": NEW}, 0),
        ({"description": ""}, "", {"description": NEW}, 0),
        ({"description": "Its own."}, "", {"description": "Its own."}, 1),
    ],
)
def test_a_description_that_is_not_the_known_one(described, known, expected, lost):
    tools = [{"type": "function", "function": {"name": "look", **described}}]
    _, sent, counted = rewritten([ASKED], prompt(known=known, tool="look"), tools=tools)
    assert sent[0]["function"] == {"name": "look", **expected}
    assert counted == lost


def test_a_request_without_the_tool_is_not_counted():
    _, sent, lost = rewritten([ASKED], prompt(tool="look"), tools=[TOOLS[0], {"type": "custom"}])
    assert (sent, lost) == ([TOOLS[0], {"type": "custom"}], 0)


TEXTS = st.text(st.sampled_from("ab {}x\n.Ä_"), max_size=20)
PARTS = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, TEXTS),
        st.just({"type": "image_url", "image_url": {"url": "x"}}),
    ),
    max_size=3,
)
MESSAGES = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
        st.one_of(TEXTS, PARTS, st.none()),
    ),
    max_size=5,
)


def texts(message):
    content = message["content"]
    rows = content if isinstance(content, list) else [{"text": content}]
    return [each["text"] for each in rows if isinstance(each.get("text"), str)]


@given(known=TEXTS, messages=MESSAGES)
def test_replacing_by_the_same_text_changes_no_byte(known, messages):
    before = json.dumps(messages)
    sent, _, _ = rewritten(messages, prompt(known, known))
    assert json.dumps(sent) == before
    assert sent is messages


@given(known=TEXTS.filter(bool), new=TEXTS, messages=MESSAGES, data=st.data())
def test_at_most_one_text_of_one_head_changes(known, new, messages, data):
    heads = [each for each in messages if each["role"] in ("system", "developer")]
    if heads and data.draw(st.booleans()):
        data.draw(st.sampled_from(heads))["content"] = f"{data.draw(TEXTS)} {known} after"
    sent, _, lost = rewritten(messages, prompt(new, known))
    changed = [(old, now) for old, now in zip(messages, sent, strict=True) if old is not now]
    assert len(changed) <= 1
    assert lost == 0 or not changed
    for old, now in changed:
        assert old["role"] == now["role"] in ("system", "developer")
        pairs = [*zip(texts(old), texts(now), strict=True)]
        assert sum(one != other for one, other in pairs) <= 1
    for agent in ("planner", "@writer", ""):
        assert rewritten(messages, prompt(new, known), agent=agent)[0] is messages
