"""Learning captured prompts from the texts that agents sent."""

from __future__ import annotations

import re

import pytest
from agl_prompts._captured import CapturedPrompt
from agl_prompts._captured_align import align
from agl_prompts._captured_learn import learn
from agl_prompts._captured_pattern import Pattern
from hypothesis import assume, given
from hypothesis import strategies as st

from agl_core.clocks import new_id
from agl_core.errors import ConfigError
from agl_core.interfaces import AttemptRecord
from agl_core.types import (
    Attempt,
    ModelCall,
    PromptTemplate,
    Rollout,
    Span,
    SpanKind,
    Task,
)

ASKED = {"role": "user", "content": "hi"}


def head(content, role="system"):
    return [{"role": role, "content": content}, ASKED]


def call(messages, *, agent="writer", alias="", tools=()):
    call_id = new_id("call")
    record = ModelCall(
        id=call_id,
        rollout_id="r",
        attempt_id="a",
        agent=agent,
        alias=alias,
        messages=messages,
        tools=[*tools],
        complete=True,
    )
    return Span(
        id=new_id("span"),
        rollout_id="r",
        attempt_id="a",
        kind=SpanKind.LLM,
        name="chat",
        agent=agent,
        call_id=call_id,
        call=record,
    )


def record(*calls, task=None):
    rollout = Rollout(id=new_id("ro"), task=task or Task(id="t"), run_id="run")
    attempt = Attempt(id=new_id("at"), rollout_id=rollout.id, fence=1, worker="w")
    return AttemptRecord(rollout=rollout, attempt=attempt, spans=[*calls])


def learned(*texts, tasks=None, **more):
    tasks = tasks or [Task(id=str(n)) for n in range(len(texts))]
    records = [record(call(head(text)), task=task) for text, task in zip(texts, tasks, strict=True)]
    found = learn(records, name="writer", agents=("writer",), **more)
    assert found.template == found.known
    for text in texts:
        same = CapturedPrompt(found).in_messages(head(text))
        assert same == head(text)
    return found


def test_a_constant_text_is_learned_as_it_is():
    found = learned("  Be kind: {a}.\n", "  Be kind: {a}.\n")
    assert found == PromptTemplate(
        template="Be kind: {a}.", known="Be kind: {a}.", agents=("writer",)
    )


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (head("Be kind.", "developer"), "Be kind."),
        (
            head([{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Now."}]),
            "Be kind.",
        ),
        (head([{"type": "image_url"}, {"type": "text", "text": "Be kind."}]), "Be kind."),
        ([ASKED], ""),
        ([ASKED, *head("Later.")], ""),
        (head(None), ""),
    ],
)
def test_the_text_is_that_of_the_first_message(messages, expected):
    found = learn([record(call(messages))], name="p", agents=("writer",))
    assert (found.known, found.template) == (expected, expected)


def test_names_globs_and_aliases_say_whose_text_it_is():
    calls = [
        call(head("Be kind."), agent="writer of tea"),
        call(head("Quite other words here."), agent="planner"),
        call(head("Be quick and short."), agent="writer of nothing", alias="planner"),
        call(head("Sum up what was said."), agent="@writer of all"),
    ]
    assert learn([record(*calls)], name="p", agents=("writer of *",)).known == "Be kind."
    planner = learn([record(*calls[2:])], name="p", agents=("planner",))
    assert planner.known == "Be quick and short."


def test_what_varies_between_tasks_becomes_a_placeholder():
    found = learned(
        "You help Ann, aged 5, in Rome. Be kind to Ann.",
        "You help Bob Young, aged 44, in New York. Be kind to Bob Young.",
        "You help Cy, aged 7, in Rome. Be kind to Cy.",
    )
    assert found.known == (
        "You help {value_1}, aged {value_2}, in {value_3}. Be kind to {value_1}."
    )


def test_placeholders_have_the_names_of_the_tasks_fields():
    tasks = [Task(id=item, input={"item": item, "n": n}) for n, item in enumerate(["tea", "ink"])]
    found = learned("Sell tea, number 0, now.", "Sell ink, number 1, now.", tasks=tasks)
    assert found.known == "Sell {item}, number {n}, now."


def test_a_name_that_the_text_has_in_braces_is_not_taken():
    tasks = [Task(id=item, input={"item": item}) for item in ("tea", "ink")]
    found = learned(
        'Answer about tea as {"x": {item}, "y": {value_1}}.',
        'Answer about ink as {"x": {item}, "y": {value_1}}.',
        tasks=tasks,
    )
    assert found.known == 'Answer about {value_2} as {"x": {item}, "y": {value_1}}.'
    tuned = PromptTemplate(
        template="{value_2}! {item} {value_1}", known=found.known, agents=("writer",)
    )
    text = 'Answer about new tea as {"x": {item}, "y": {value_1}}.'
    assert CapturedPrompt(tuned).in_text(text) == "new tea! {item} {value_1}"


def test_a_later_value_that_was_never_seen_is_read():
    found = learned("Today is Monday. Be kind and brief.", "Today is Friday. Be kind and brief.")
    tuned = PromptTemplate(template="Be brief on {value_1}.", known=found.known, agents=("writer",))
    text = "Today is the last Sunday. Be kind and brief.\n\nMore."
    assert CapturedPrompt(tuned).in_text(text) == "Be brief on the last Sunday.\n\nMore."


@pytest.mark.parametrize(
    "texts",
    [
        ("Be kind and brief always, please.", "Be kind and brief always, please.\n\nTo-dos: 3."),
        ("Be kind and brief always, please.\nFirst.", "Be kind and brief always, please.\nOther."),
        ("Rules A.\n\nBe kind and brief always, please.", "Be kind and brief always, please."),
    ],
)
def test_lines_that_are_added_around_the_text_are_not_part_of_it(texts):
    assert learned(*texts).known == "Be kind and brief always, please."


def test_a_value_at_the_end_of_a_line_is_a_placeholder():
    found = learned("Be kind, be brief.\nDate: 1 May", "Be kind, be brief.\nDate: 12 June")
    assert found.known == "Be kind, be brief.\nDate: {value_1}"
    tuned = PromptTemplate(template="On {value_1}: brief.", known=found.known)
    assert CapturedPrompt(tuned).in_text("Be kind, be brief.\nDate: 3 July\n\nSay x.") == (
        "On 3 July: brief.\n\nSay x."
    )


def test_a_long_varying_document_is_one_placeholder_whatever_words_it_shares():
    one = "the cat of the house and the dog of the yard are in the shop, it is said. " * 5
    other = "on the sea the ships of the king are late, and it is the cook of the inn. " * 5
    found = learned(
        f"Answer from this text:\n{one}\nSay nothing else, please.",
        f"Answer from this text:\n{other}\nSay nothing else, please.",
    )
    assert found.known == "Answer from this text:\n{value_1}. \nSay nothing else, please."


def test_texts_beyond_the_first_are_compared_if_they_differ_more():
    kinds = [f"Serve table {n} with tea, in the big room." for n in range(40)]
    found = learned(*kinds, "Serve table 50 with ink, in the big room.")
    assert found.known == "Serve table {value_1} with {value_2}, in the big room."


def test_heads_that_share_nothing_are_refused_with_both():
    calls = [call(head("You are a pirate.")), call(head("Sum up the talk in short words."))]
    with pytest.raises(ConfigError) as refused:
        learn([record(*calls)], name="mood", agents=("writer",))
    said = str(refused.value)
    assert "prompts.mood" in said
    assert "You are a pirate." in said
    assert "Sum up the talk in short words." in said


def test_too_many_places_are_refused_and_shown():
    texts = [
        " ".join(f"word{place} is known here as {n}{place}." for place in range(30))
        for n in ("x", "y")
    ]
    with pytest.raises(ConfigError, match=r"30 places.*'x0' or 'y0'"):
        learn([record(call(head(each))) for each in texts], name="p", agents=("writer",))


def test_agents_without_a_call_are_refused_with_those_seen():
    with pytest.raises(ConfigError, match=r"\['writr'\] sent a prompt.*\['planner', 'writer'\]"):
        learn(
            [record(call(head("A.")), call(head("B."), agent="planner"))],
            name="p",
            agents=("writr",),
        )
    with pytest.raises(ConfigError, match="calls: none"):
        learn([record()], name="p", agents=("writer",))


def tool(name, **fields):
    return {"type": "function", "function": {"name": name, **fields}}


def test_a_tools_description_is_learned():
    tools = [tool("other"), tool("look", description="Look up tea."), {"type": "custom"}]
    calls = [call([ASKED], tools=tools), call([ASKED])]
    found = learn([record(*calls)], name="p", agents=("writer",), tool="look")
    assert found == PromptTemplate(
        template="Look up tea.", known="Look up tea.", agents=("writer",), tool="look"
    )
    bare = learn([record(*calls)], name="p", agents=("writer",), tool="other")
    assert bare.known == ""
    with pytest.raises(ConfigError, match=r"no tool 'find'.*\['look', 'other'\]"):
        learn([record(*calls)], name="p", agents=("writer",), tool="find")


WORDS = st.sampled_from(["tea", "Ann", "the", "x", "12", "{a}", "Ä", "of", "very_long_word"])
SPACES = st.sampled_from([" ", ", ", "\n", ". ", " - ", "\n\n"])
PASSAGES = st.lists(st.tuples(WORDS, SPACES), max_size=6).map(
    lambda pairs: "".join(word + space for word, space in pairs)
)


@given(st.lists(PASSAGES, min_size=2, max_size=4), st.lists(PASSAGES, min_size=6, max_size=12))
def test_what_is_learned_is_found_in_each_text_and_gives_it_again(constant, varying):
    columns = len(constant) - 1
    rows = [varying[at : at + columns] for at in range(0, len(varying) - columns + 1, columns)]
    texts = [
        "".join(f"{fixed}{value}" for fixed, value in zip(constant, [*row, ""], strict=True))
        for row in rows
    ]
    texts = list(dict.fromkeys(text for text in texts if text.strip()))
    assume(texts)
    try:
        found = learned(*texts)
    except ConfigError:
        return
    for text in texts:
        place = Pattern(found.known).find(text)
        assert place is not None or not found.known
    if found.known and len(texts) > 1:
        changed = PromptTemplate(template=f"New: {found.known}", known=found.known)
        assert all("New: " in CapturedPrompt(changed).in_text(text) for text in texts)


@given(st.lists(PASSAGES, min_size=1, max_size=5, unique=True))
def test_an_alignment_gives_every_text_again_and_splits_no_word(texts):
    literals, values = align(texts)
    for text, row in zip(texts, values, strict=True):
        parts = [literals[0]]
        for value, literal in zip(row, literals[1:], strict=True):
            parts += [value, literal]
        assert "".join(parts) == text
        at = 0
        for part in parts[:-1]:
            at += len(part)
            assert not re.fullmatch(r"\w\w", text[max(at - 1, 0) : at + 1])
    for column in range(len(literals) - 1):
        assert len({row[column] for row in values}) > 1
