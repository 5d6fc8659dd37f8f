"""The day: the sheriff's election, speeches and the vote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from werewolf.forms import Answer, Form
from werewolf.leaving import announce, bury, explode, explosion
from werewolf.rules import SHERIFF_VOTES
from werewolf.table import Table, named


async def day(table: Table) -> None:
    """Play one day up to its end, or to the death that decides the game."""
    if table.election_due:
        exploded = await _election(table)
        if exploded is not None:
            await explode(table, exploded)
            return
    await announce(table, words=table.round == 1)
    if table.winner():
        return
    for part in (_speeches, _vote):
        exploded = await explosion(table)
        if exploded is not None:
            await explode(table, exploded)
            return
        await part(table)


async def _election(table: Table) -> int | None:
    """Elect a sheriff; return the wolf whose explosion postpones the election, if one explodes."""
    everyone = list(table.living)
    running = await table.ask_all(everyone, "run", "是否竞选警长？", Form.YES_NO)
    ran = [seat for seat in everyone if running[seat].choice]
    table.show(f"竞选警长：{named(ran)}。", "running")
    if ran:
        exploded = await explosion(table)
        if exploded is not None:
            return exploded
        for seat in _order(table, ran):
            await table.speak(seat, "campaign", "请发表竞选发言。")
    leaving = await table.ask_all(ran, "withdraw", "是否退出竞选？", Form.YES_NO)
    left = [seat for seat in ran if not leaving[seat].choice]
    if ran:
        table.show(f"留在竞选：{named(left)}。", "running")
    voters = [seat for seat in everyone if seat not in ran]
    if len(left) > 1 and voters:
        exploded = await explosion(table)
        if exploded is not None:
            return exploded
        left = await _elect(table, voters, left)
    table.election_due = False
    table.sheriff = left[0] if len(left) == 1 else None
    table.write("badge", sheriff=table.sheriff, why="elected" if table.sheriff else "no_sheriff")
    text = f"{table.sheriff}号当选警长。" if table.sheriff else "没有警长。"
    table.show(text, "badge", table.sheriff)
    return None


async def _elect(table: Table, voters: list[int], candidates: list[int]) -> list[int]:
    """Return who has the most votes: one seat, several after the second tie, or none."""
    question = "警长投给谁？"
    tied = candidates
    for number, phase in enumerate(("elect", "elect_again")):
        if number:
            for seat in _order(table, tied):
                await table.speak(seat, "campaign", "平票，请再次发言。")
        votes = await table.ask_all(voters, phase, question, Form.SEAT_OR_NONE, tied)
        tied = _count(table, phase, votes)
        if len(tied) < 2:
            return tied
    return tied


async def _speeches(table: Table) -> None:
    for seat in _order(table, table.living):
        if seat == table.sheriff:
            await table.speak(seat, "summary", "你是警长，请总结并归票。")
        else:
            await table.speak(seat, "speech", "请发言。")


async def _vote(table: Table) -> None:
    voters, tied = list(table.living), list(table.living)
    for phase in ("vote", "vote_again"):
        votes = await table.ask_all(voters, phase, "放逐谁？", Form.SEAT_OR_NONE, tied)
        tied = _count(table, phase, votes)
        if len(tied) < 2:
            break
        voters = [seat for seat in table.living if seat not in tied]
        if phase == "vote":
            for seat in _order(table, tied):
                await table.speak(seat, "speech", "平票，请再次发言。")
    exiled = tied[0] if len(tied) == 1 else None
    table.write("exile", seat=exiled)
    if exiled is None:
        table.show("今天没有人被放逐。", "peace")
    else:
        await bury(table, {exiled: "exile"}, words=True)


def _count(table: Table, phase: str, votes: Mapping[int, Answer]) -> list[int]:
    """Count, log and show the votes; return who has the most; no seat without any vote."""
    tally: dict[int, float] = {}
    for seat, answer in votes.items():
        if answer.choice is not None:
            weight = SHERIFF_VOTES if seat == table.sheriff else 1.0
            tally[answer.choice] = tally.get(answer.choice, 0.0) + weight
    table.write("tally", phase=phase, votes={str(seat): tally[seat] for seat in sorted(tally)})
    shown = "，".join(f"{seat}投{answer.choice or '无'}" for seat, answer in votes.items())
    table.show(f"投票：{shown or '无'}。", "votes")
    most = max(tally.values(), default=0.0)
    return sorted(seat for seat in tally if tally[seat] == most)


def _order(table: Table, seats: Sequence[int]) -> list[int]:
    """Return the order of speeches: first seat and direction are drawn, the sheriff is last."""
    seats = sorted(seats)
    sheriff = table.sheriff if table.sheriff in seats else None
    direction = table.draw("direction", [1, -1]) if len(seats) > 1 else 1
    if sheriff is None:
        first = seats.index(table.draw("first", seats) or 0)
    else:
        first = seats.index(sheriff) + (direction or 1)
    return [seats[(first + (direction or 1) * step) % len(seats)] for step in range(len(seats))]
