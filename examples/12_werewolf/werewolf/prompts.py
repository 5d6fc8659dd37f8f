"""What an agent reads: its card, the state of the game, the lines it has seen, the question."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from werewolf.asking import Line, Request
from werewolf.forms import MATE, OTHER, instruction
from werewolf.rules import CHINESE, GODS, Role, camp

RULES = """你在玩十二人狼人杀。三名狼人和狼王为狼队；四名村民和四名神职（预言家、女巫、猎人、守卫）为好人。
狼人全部出局则好人胜；神职全部出局或村民全部出局则狼队胜。
夜里：守卫守一人，不能连续两夜守同一人；狼队商量后投票杀一人或不杀；女巫有一瓶解药和一瓶毒药，同一夜只用一瓶，不能救自己，同时被守和被救的人会死；预言家查验一人。
白天：第一天先竞选警长；公布死讯；依次发言；投票放逐，警长算一点五票，平票再投一次。猎人和狼王死时可以开枪，被毒死不能。普通狼人可以自爆结束白天。
只用中文。发言只写一行。不要说出你的身份牌原文。"""
DUTY = {
    Role.VILLAGER: "没有技能，靠发言和投票找出狼人。",
    Role.WOLF: "夜里与同伴杀人，白天隐藏身份。",
    Role.WOLF_KING: "夜里与同伴杀人，白天隐藏身份，死时可以开枪。",
    Role.SEER: "每夜查验一人。",
    Role.WITCH: "有解药和毒药各一瓶。",
    Role.HUNTER: "死时可以开枪。",
    Role.GUARD: "每夜守护一人。",
}


_KILLS = re.compile(r"杀\D*(\d+)号")


@dataclass(frozen=True, slots=True)
class Style:
    """How much an agent reads."""

    rules: bool = True
    """Whether the system prompt states the rules."""
    lines: int | None = None
    """How many of the newest lines it reads; all of them if None."""
    remembers: bool = False
    """Whether an agent keeps its conversation for the game, and then reads only what is new."""

    @property
    def short(self) -> bool:
        """Whether prompts do not grow with the game."""
        return self.lines is not None and not self.remembers


FULL = Style()
BRIEF = Style(rules=False, lines=1)
"""For models with a short context: the state of the game and the newest line."""


def name(seat: int) -> str:
    """Return an agent's name, which does not show its card."""
    return f"{seat}号"


def system(request: Request, style: Style) -> str:
    """Return the system prompt, with the private card."""
    card = f"你是{name(request.seat)}，身份是{CHINESE[request.role]}。"
    if not style.rules:
        return card
    mates = "、".join(map(name, request.mates))
    known = f"狼队是{mates}。" if mates else ""
    return f"{RULES}\n{card}{DUTY[request.role]}{known}"


def user(request: Request, style: Style, since: int = 0) -> str:
    """Return the message of one question.

    Args:
        request: The question.
        style: How much the agent reads.
        since: The number of lines that it has read before.
    """
    if request.problem:
        return request.problem
    lines = request.lines[since:]
    if style.lines is not None:
        lines = lines[-style.lines :]
    options = () if style.short and request.mates else request.options
    parts = [*_state(request, style), *map(shown, lines)]
    return "\n".join([*parts, request.question + instruction(request.form, options)])


def shown(line: Line) -> str:
    """Return one line as an agent reads it."""
    return f"{line.seat}号：{line.text}" if line.kind in ("said", "whisper") else line.text


def spoken(text: str) -> str:
    """Return an answer without the thoughts before it."""
    return text.rpartition("</think>")[2].strip()


def _state(request: Request, style: Style) -> list[str]:
    """Return who lives, and what some have said that they are.

    A short prompt to a wolf names one of the wolves and one of the others in the place of all.
    """
    if style.short and request.mates:
        living = f"备选：{_seats(pair(request), request.mates)}。"
    else:
        living = f"在场：{_seats(request.living, request.mates)}。"
    parts = [f"第{request.round}天。{living}"]
    if request.sheriff:
        parts.append(f"警长：{request.sheriff}。")
    for role in sorted(GODS):
        claimed = dict.fromkeys(
            line.seat
            for line in request.lines
            if line.kind == "said" and f"我是{CHINESE[role]}" in line.text
        )
        if seats := [seat for seat in claimed if seat in request.living]:
            parts.append(f"自称{CHINESE[role]}：{_seats(seats)}。")
    return parts


def pair(request: Request) -> list[int]:
    """Return one of the wolves that may be chosen and one of the others, drawn by chance.

    Once a wolf has named a seat to kill at night, the others read that seat alone.
    """
    if named := _proposed(request):
        return [named]
    seats = request.options or request.living
    camps = [[each for each in seats if (each in request.mates) == own] for own in (True, False)]
    chance = random.Random(f"{request.seat} {request.round} {request.phase} {seats}")
    return [chance.choice(each) for each in camps if each]


def _proposed(request: Request) -> int | None:
    """Return whom a wolf was the first to propose to kill this night, if it may be killed."""
    if request.phase not in ("talk", "kill"):
        return None
    texts = [line.text for line in request.lines if _whispered(line, request.round)]
    found = [int(seat[1]) for text in texts if (seat := _KILLS.search(text))]
    return next((seat for seat in found if seat in request.living), None)


def _whispered(line: Line, night: int) -> bool:
    return line.kind == "whisper" and line.round == night


def called(seat: int, mates: Sequence[int]) -> str:
    """Return a seat after the word that a wolf has for its camp."""
    return f"{MATE if seat in mates else OTHER}{seat}"


def _seats(seats: Sequence[int], mates: Sequence[int] = ()) -> str:
    """Return seats; a wolf reads of each to which camp it belongs."""
    return " ".join(called(seat, mates) if mates else str(seat) for seat in seats)


def alias(role: Role, kind: str) -> str:
    """Return what a seat is trained as: its ``camp`` or its ``role``."""
    return camp(role) if kind == "camp" else role.value
