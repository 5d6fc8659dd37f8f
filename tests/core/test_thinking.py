from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agl_core.errors import ConfigError
from agl_core.thinking import Part, ThinkParser, split_thinking, without_thinking

THOUGHT, TEXT = "thinking", "text"


def split(text: str, **options) -> list[tuple[str, str]]:
    return [(part.kind, part.text) for part in split_thinking(text, **options)]


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ("", []),
        (" \n", []),
        ("42", [(TEXT, "42")]),
        ("<think>a</think>b", [(THOUGHT, "a"), (TEXT, "b")]),
        ("<thinking>a</thinking>b", [(THOUGHT, "a"), (TEXT, "b")]),
        ("so <think>a</think> b", [(TEXT, "so "), (THOUGHT, "a"), (TEXT, " b")]),
        ("<think>\na\n</think>\n\nb\n", [(THOUGHT, "\na\n"), (TEXT, "\n\nb\n")]),
    ],
)
def test_a_block_is_a_part_and_the_text_around_it_another(answer, parts):
    assert split(answer) == parts


@pytest.mark.parametrize("answer", ["<think>a", "<think>a</thi", "<think>a</think", "<think>a<"])
def test_what_is_never_closed_is_thinking_to_the_end(answer):
    assert split(answer) == [(THOUGHT, answer.removeprefix("<think>"))]


@pytest.mark.parametrize(
    "answer", ["<", "a <thin", "if a < b", "</", "<Think>a</Think>", "<think >"]
)
def test_what_only_begins_like_a_tag_is_text(answer):
    assert split(answer) == [(TEXT, answer)]


@pytest.mark.parametrize("empty", ["<think></think>", "<think>\n\n</think>"])
def test_an_empty_block_is_no_part(empty):
    assert split(f"{empty}b") == [(TEXT, "b")]
    assert split(empty) == []


def test_several_blocks_are_several_parts():
    answer = "<think>a</think>\n<think>b</think>c<think>d</think>"
    assert split(answer) == [(THOUGHT, "a"), (THOUGHT, "b"), (TEXT, "c"), (THOUGHT, "d")]


def test_a_nested_block_belongs_to_the_outer_one():
    inner = "a<think>b</think>c"
    assert split(f"<think>{inner}</think>d") == [(THOUGHT, inner), (TEXT, "d")]


def test_an_opening_without_an_end_inside_a_block_keeps_no_answer_in_it():
    said = "<think>they want <think> tags</think>\n<b>done</b>"
    assert split(said) == [(THOUGHT, "they want <think> tags"), (TEXT, "\n<b>done</b>")]
    twice = "<think>\n<think>a</think>b"
    assert split(twice) == [(THOUGHT, "\n<think>a"), (TEXT, "b")]


def test_another_tag_inside_a_block_is_part_of_the_thought():
    assert split("<think>a<thinking>b</think>c") == [(THOUGHT, "a<thinking>b"), (TEXT, "c")]


def test_a_closing_tag_alone_ends_thinking_that_the_template_began():
    assert split("a\nb</think>c") == [(THOUGHT, "a\nb"), (TEXT, "c")]
    assert split("</think>c") == [(TEXT, "c")]


def test_a_second_closing_tag_is_text():
    assert split("<think>a</think>b</think>c") == [(THOUGHT, "a"), (TEXT, "b</think>c")]


def test_a_prompt_that_ended_in_the_tag_begins_with_thinking():
    assert split("a", opened=True) == [(THOUGHT, "a")]
    assert split("a</think>b", opened=True) == [(THOUGHT, "a"), (TEXT, "b")]
    assert split("\n<think>a</think>b", opened=True) == [(THOUGHT, "a"), (TEXT, "b")]
    assert split("a<think>b</think>c", opened=True) == [(THOUGHT, "a<think>b"), (TEXT, "c")]


@pytest.mark.parametrize(
    "code",
    [
        "`<think>`",
        "the tag `<think>` opens, `</think>` closes",
        "``a ` <think>``",
        "```\n<think>\n```",
        "```xml\n<think>a</think>\n```\n",
        "   ~~~\n<think>\n```\n</think>\n~~~~",
        "````\n```\n<think>\n```\n````",
        "```\n<think>cut off",
    ],
)
def test_tags_in_code_are_text(code):
    assert split(code) == [(TEXT, code)]
    assert split(f"<think>a</think>{code}") == [(THOUGHT, "a"), (TEXT, code)]


@pytest.mark.parametrize(
    "code", ["`</think>`", "is `</think>` a tag", "```\n</think>\n```\n", "~~~\n</think>\n~~~\n"]
)
def test_tags_in_code_inside_a_thought_do_not_end_it(code):
    assert split(f"<think>{code}</think>b") == [(THOUGHT, code), (TEXT, "b")]


@pytest.mark.parametrize("open_code", ["a ` b", "``` and", "a `` b ` c"])
def test_a_backtick_that_nothing_closes_hides_no_tag(open_code):
    answer = f"{open_code} <think>a</think>b"
    if open_code.startswith("```"):
        answer = f"x {answer}"
    assert split(answer)[1:] == [(THOUGHT, "a"), (TEXT, "b")]


def test_a_fence_that_a_thought_forgets_to_close_hides_no_answer():
    answer = "<think>try\n```py\nx = 1\n</think>\nThe answer is `1`."
    assert split(answer) == [(THOUGHT, "try\n```py\nx = 1\n"), (TEXT, "\nThe answer is `1`.")]


def test_a_fence_begins_right_behind_a_tag():
    assert split("<think>a</think>```\n<think>\n```") == [
        (THOUGHT, "a"),
        (TEXT, "```\n<think>\n```"),
    ]


def test_reasoning_of_a_field_comes_first():
    assert split("b", reasoning="a") == [(THOUGHT, "a"), (TEXT, "b")]
    assert split("<think>b</think>c", reasoning="a") == [
        (THOUGHT, "a"),
        (THOUGHT, "b"),
        (TEXT, "c"),
    ]
    assert split("", reasoning="a") == [(THOUGHT, "a")]
    assert split("b", reasoning="\n") == [(TEXT, "b")]


@pytest.mark.parametrize(
    ("tag", "answer"),
    [
        ("reasoning", "<reasoning>a</reasoning>b"),
        ("seed:think", "<seed:think>a</seed:think>b"),
        ("[THINK] [/THINK]", "[THINK]a[/THINK]b"),
        ("◁think▷ ◁/think▷", "◁think▷a◁/think▷b"),
        ("<|begin_of_thought|> <|end_of_thought|>", "<|begin_of_thought|>a<|end_of_thought|>b"),
    ],
)
def test_other_tags(tag, answer):
    assert split(answer, tags=[tag]) == [(THOUGHT, "a"), (TEXT, "b")]
    assert split(answer) == [(TEXT, answer)]
    assert split("<think>a</think>b", tags=[tag]) == [(TEXT, "<think>a</think>b")]


@pytest.mark.parametrize("tag", ["", "<think>", "a b c", "x x", "`a` b"])
def test_what_is_no_tag_is_refused(tag):
    with pytest.raises(ConfigError, match="Thinking tag"):
        ThinkParser(tags=[tag])


def test_no_tags_are_no_thinking():
    assert split("<think>a</think>", tags=()) == [(TEXT, "<think>a</think>")]


def test_an_answer_without_its_thoughts():
    assert without_thinking("<think>a</think>b<think>c</think>d") == "bd"
    assert without_thinking("  b ") == "  b "


def test_text_is_given_out_as_soon_as_it_is_certain():
    parser = ThinkParser()
    given_out = [parser.feed(piece) for piece in ("a <", "b <th", "ink>c", "</think", ">d `", "e")]
    assert given_out == [
        [Part(TEXT, "a ")],
        [Part(TEXT, "<b ")],
        [Part(THOUGHT, "c")],
        [],
        [Part(TEXT, "d `")],
        [Part(TEXT, "e")],
    ]
    assert parser.finish() == []


def test_the_parts_so_far_can_be_looked_at_while_the_answer_comes():
    parser = ThinkParser()
    seen = []
    for piece in ("<thi", "nk>a", "</th", "ink>", "b"):
        parser.feed(piece)
        seen.append([(part.kind, part.text) for part in parser.parts])
    thought = [(THOUGHT, "a")]
    assert seen == [[], thought, thought, thought, [*thought, (TEXT, "b")]]


def test_what_only_the_end_can_tell_counts_as_thinking_until_then():
    parser = ThinkParser()
    parser.feed("<think>a <think> tag</think>b")
    assert [part.kind for part in parser.parts] == [THOUGHT]
    parser.finish()
    assert [part.text for part in parser.parts] == ["a <think> tag", "b"]


@pytest.mark.parametrize(
    "piece",
    ["<think>`</think>`", "<think>a<think>b</think>", "<think>\n```\n</think>\n", "` `` <think>"],
)
def test_tags_without_end_take_no_time_without_end(piece):
    parser = ThinkParser()
    passes = 0
    advance = parser._advance

    def counted(**options):
        nonlocal passes
        passes += 1
        advance(**options)

    parser._advance = counted
    parser.feed(piece * 2000)
    parser.finish()
    assert passes <= 5
    assert sum(len(part.text) for part in parser.parts) <= len(piece) * 2000


def test_fields_and_content_may_come_in_turns():
    parser = ThinkParser()
    parser.feed(reasoning="Let me")
    parser.feed(reasoning=" think")
    parser.feed("4")
    parser.feed("2")
    parser.finish()
    assert parser.parts == split_thinking("42", reasoning="Let me think")


pieces = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<thinking>", "</thinking>", "`", "``", "```", "~~~", "\n", " ", "a",
         "<", "<th", "</", "ink>", "b c", "   ", "```py"]
    ),
    max_size=14,
).map("".join)  # fmt: skip


@given(text=pieces, cuts=st.lists(st.integers(0, 80), max_size=8), opened=st.booleans())
@example(text="```\n<think>\n", cuts=[1, 2], opened=False)
@example(text="```\nth```\n<think>a", cuts=[6], opened=False)
@example(text="~~~py\n<think>a", cuts=[5], opened=False)
@example(text="<think><think>a</think>b</think>c", cuts=[14], opened=False)
@example(text="<think><think>a</think>b</think>c", cuts=[23], opened=False)
@settings(max_examples=300, deadline=None)
def test_every_way_to_cut_an_answer_gives_the_same_parts(text, cuts, opened):
    whole = split_thinking(text, opened=opened)
    parser = ThinkParser(opened=opened)
    given_out: list[Part] = []
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in pairwise(bounds):
        given_out += parser.feed(text[start:end])
        assert len(joined(parser.parts)) <= len(text[:end])
    given_out += parser.finish()
    assert parser.parts == whole
    assert joined(given_out) == joined(whole)
    if opened or not began_inside(text):
        assert joined(given_out, THOUGHT) == joined(whole, THOUGHT)


@given(text=pieces)
@settings(max_examples=300, deadline=None)
def test_parts_are_pieces_of_the_text_in_its_order(text):
    position = 0
    for part in split_thinking(text):
        position = text.index(part.text, position) + len(part.text)


def joined(parts, kind: str | None = None) -> str:
    chosen = [part.text for part in parts if kind in (None, part.kind)]
    return "".join("".join(chosen).split())


def began_inside(text: str) -> bool:
    """Whether a closing tag comes first, so that text was given out before it was known better."""
    openings = [text.find(tag) for tag in ("<think>", "<thinking>") if tag in text]
    closings = [text.find(tag) for tag in ("</think>", "</thinking>") if tag in text]
    return bool(closings) and (
        not openings or min(closings) < min(openings) or "`" in text or "~" in text
    )
