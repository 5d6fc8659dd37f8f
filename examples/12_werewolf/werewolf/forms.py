"""The forms of an answer: what a seat writes, and what it decides by that."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_SPEECH = 160
"""Characters of one speech."""
MATE, OTHER = "同伴", "好人"
"""What a wolf calls the wolves and the others; may come before a number."""
_SEAT = re.compile(rf"(?:决定:)?\s*(?:{MATE}|{OTHER})?\s*(\d{{1,2}})\s*号?\s*[.。]?", re.ASCII)
_WORD = re.compile(r"(?:决定:)?\s*(是|否|无|弃权)\s*[.。]?")


class Form(StrEnum):
    """What a question asks for."""

    SPEECH = "speech"
    YES_NO = "yes_no"
    SEAT = "seat"
    SEAT_OR_NONE = "seat_or_none"
    SPEECH_YES_NO = "speech_yes_no"


Choice = int | bool | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A decision, and what was said with it."""

    choice: Choice = None
    said: str = ""


class UnclearAnswerError(ValueError):
    """An answer that is not of the form asked for; the text says so in Chinese, to the seat."""


def declined(form: Form) -> Answer:
    """Return what counts as the answer of a seat that gives no valid one."""
    return Answer(False if form in (Form.YES_NO, Form.SPEECH_YES_NO) else None)


def instruction(form: Form, options: Sequence[int] = ()) -> str:
    """Return how to answer, in Chinese, with the seats to choose among if they are given."""
    seats = f"：{'或'.join(map(str, options))}" if options else ""
    return {
        Form.SPEECH: "用一句中文发言。",
        Form.YES_NO: "最后一行只写 是 或 否。",
        Form.SEAT: f"最后一行只写一个号码{seats}。",
        Form.SEAT_OR_NONE: f"最后一行只写一个号码{seats}或无。",
        Form.SPEECH_YES_NO: "先用一句中文发言，最后一行只写 是 或 否。",
    }[form]


def read(text: str, form: Form, options: Sequence[int] = ()) -> Answer:
    """Read an answer.

    A speech is one line. A decision is the last line; lines before it are private reasons, or the
    speech where the form has one.

    Raises:
        UnclearAnswerError: the text is not of the form, or names a seat that is not allowed.
    """
    lines = [line.strip() for line in clean(text).splitlines() if line.strip()]
    if not lines:
        raise UnclearAnswerError("没有回答。" + instruction(form, options))
    if form is Form.SPEECH:
        return Answer(said=_speech(lines, form))
    choice = _choice(lines[-1], form, options)
    if form is Form.SPEECH_YES_NO:
        return Answer(choice, _speech(lines[:-1], form))
    return Answer(choice)


def clean(text: str) -> str:
    """Return the text without control characters and what cannot be encoded."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(
        each for each in text if each in "\n\r\t" or unicodedata.category(each)[0] != "C"
    )


def is_chinese(text: str) -> bool:
    """Whether a speech is in Chinese: at least half of its letters are Chinese characters."""
    letters = [each for each in text if each.isalpha()]
    chinese = sum("\u4e00" <= each <= "\u9fff" for each in letters)
    return bool(letters) and 2 * chinese >= len(letters)


def _speech(lines: list[str], form: Form) -> str:
    if len(lines) != 1 or len(lines[0]) > MAX_SPEECH:
        raise UnclearAnswerError(f"发言应是一行，最多{MAX_SPEECH}字。" + instruction(form))
    return lines[0]


def _choice(line: str, form: Form, options: Sequence[int]) -> Choice:
    line = unicodedata.normalize("NFKC", line)
    word = _WORD.fullmatch(line)
    if form in (Form.YES_NO, Form.SPEECH_YES_NO):
        if word and word[1] in ("是", "否"):
            return word[1] == "是"
    elif form is Form.SEAT_OR_NONE and word and word[1] in ("无", "弃权"):
        return None
    elif seat := _SEAT.fullmatch(line):
        if int(seat[1]) in options:
            return int(seat[1])
        raise UnclearAnswerError(f"不能选{seat[1]}。" + instruction(form, options))
    raise UnclearAnswerError("看不懂回答。" + instruction(form, options))
