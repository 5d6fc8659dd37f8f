"""Word problems with one to three operations, and what counts as a right answer."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE = 1e-2
"""An answer is right if it differs from the value by at most this number."""
MARK = "Answer:"
MOST_STEPS = 3
LETTERS = "ABCD"

GOODS = ("litres of water", "kilos of rice", "metres of rope", "grams of salt", "pages of text")
OWNERS = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo")
PHRASES = {
    "+": ("finds {} more", "buys {} more"),
    "-": ("loses {}", "gives {} away"),
    "*": ("then has {} times as much", "makes {} times as much of it"),
    "/": ("keeps one of {} equal parts", "divides it by {}"),
}
"""Operator, and what an owner does with a number."""
NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d{1,3})?")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem and its solution."""

    question: str
    expression: str
    value: float
    letter: str = ""
    """The right option, if the problem offers some."""


def draw(chance: random.Random, *, options: bool = False) -> Problem:
    """Draw a problem whose value is never below 1, with four options if asked for."""
    owner, goods = chance.choice(OWNERS), chance.choice(GOODS)
    value = float(chance.randint(2, 99))
    expression, said = f"{value:g}", [f"{owner} has {value:g} {goods}."]
    for step in range(chance.randint(1, MOST_STEPS)):
        sign, number, value = _step(chance, value)
        said.append(f"{owner} {chance.choice(PHRASES[sign]).format(number)}.")
        expression = f"{f'({expression})' if step else expression} {sign} {number}"
    said.append("How much is it now?")
    letter = ""
    if options:
        values, letter = _options(chance, value)
        said += [f"{name}) {each:.10g}" for name, each in zip(LETTERS, values, strict=True)]
    return Problem(" ".join(said), expression, value, letter)


def judge(text: str, value: float, letter: str = "") -> tuple[float, str]:
    """Return 1 for a right answer and 0 for any other, with the reason."""
    lines = [line.strip() for line in text.strip().splitlines()]
    marked = [line for line in lines if line.startswith(MARK)]
    if len(marked) != 1:
        return 0.0, f"{len(marked)} lines begin with {MARK!r}, one should"
    if lines[-1] != marked[0]:
        return 0.0, f"the line that begins with {MARK!r} is not the last"
    said = marked[0].removeprefix(MARK).strip()
    if letter:
        right = re.fullmatch(rf"\(?{letter}[).]?", said, re.IGNORECASE) is not None
        return float(right), f"{said!r} is {'right' if right else f'not option {letter}'}"
    if not re.search(r"\d", said) or NUMBER.fullmatch(said) is None:
        return 0.0, f"{said!r} is not a number"
    # An error of rounding in the comparison itself is not the answer's.
    right = abs(float(said.replace(",", "")) - value) <= TOLERANCE + 1e-9
    return float(right), f"{said} is {'right' if right else f'not {value:.10g}'}"


def _step(chance: random.Random, value: float) -> tuple[str, int, float]:
    sign = chance.choice([*PHRASES] if value >= 3 else ["+", "*"])  # noqa: PLR2004  3 - 2 is 1
    if sign == "+":
        number = chance.randint(2, 99)
        return sign, number, value + number
    if sign == "-":
        number = chance.randint(2, min(99, int(value) - 1))
        return sign, number, value - number
    number = chance.randint(2, 9 if sign == "*" else min(9, int(value)))
    return sign, number, value * number if sign == "*" else value / number


def _options(chance: random.Random, value: float) -> tuple[Sequence[float], str]:
    others = chance.sample([each for each in range(-9, 10) if each], len(LETTERS) - 1)
    values = [value, *(value + each for each in others)]
    chance.shuffle(values)
    return values, LETTERS[values.index(value)]
