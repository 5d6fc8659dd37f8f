"""The night: guard, wolves, witch, seer, and whether the guns are loaded."""

from __future__ import annotations

from collections import Counter

from werewolf.forms import Form
from werewolf.rules import GUNS, MAX_TALKS, WOLVES, Role
from werewolf.table import Table, named


async def night(table: Table) -> None:
    """Play one night; deaths wait in ``table.tonight`` until they are announced."""
    guarded = await _guard(table)
    target = await _wolves(table)
    saved, poisoned = await _witch(table, target)
    await _seer(table)
    table.tonight = {}
    if target is not None and (guarded == target) == saved:
        table.tonight[target] = "wolves"
    if poisoned is not None:
        table.tonight[poisoned] = "poison"
    for seat in table.of(*GUNS):
        may = seat != poisoned
        table.write("gun", seat=seat, may=may)
        table.show("你可以开枪。" if may else "你不能开枪。", "note", seat, [seat])
    deaths = {str(seat): table.tonight[seat] for seat in sorted(table.tonight)}
    table.write("night", target=target, deaths=deaths)


async def _guard(table: Table) -> int | None:
    for seat in table.of(Role.GUARD):
        options = [each for each in table.living if each != table.guarded]
        answer = await table.ask(seat, "guard", "今夜守护谁？", Form.SEAT_OR_NONE, options)
        table.guarded = answer.choice
        table.show(
            f"你守护{named([answer.choice] if answer.choice else [])}。", "note", seat, [seat]
        )
        return answer.choice
    return None


async def _wolves(table: Table) -> int | None:
    wolves = table.wolves
    if len(wolves) > 1:
        await _talk(table, wolves)
    question = "今夜杀谁？"
    votes = await table.ask_all(wolves, "kill", question, Form.SEAT_OR_NONE, table.living)
    counts = Counter(votes[seat].choice for seat in wolves)
    most = max(counts.values())
    tied = [each for each in (*table.living, None) if counts[each] == most]
    target = table.draw("kill", tied)
    text = f"狼队杀{named([target] if target else [])}。"
    table.show(text, "kill", target, wolves)
    return target


async def _talk(table: Table, wolves: list[int]) -> None:
    """Let the wolves talk until all agree in one pass."""
    for _ in range(MAX_TALKS):
        agreed = True
        for seat in wolves:
            question = "与同伴商量今夜杀谁，是否同意现在的目标？"
            answer = await table.ask(seat, "talk", question, Form.SPEECH_YES_NO)
            table.show(answer.said or "（沉默）", "whisper", seat, wolves)
            agreed = agreed and answer.choice is True
        if agreed:
            return


async def _witch(table: Table, target: int | None) -> tuple[bool, int | None]:
    """Return whether the witch saves the target, and whom she poisons."""
    for seat in table.of(Role.WITCH):
        if table.antidote and target is not None:
            table.show(f"今夜{target}号被杀。", "note", target, [seat])
            if target != seat and (await _save(table, seat, target)):
                return True, None
        if table.poison:
            options = [each for each in table.living if each != seat]
            answer = await table.ask(seat, "poison", "今夜毒谁？", Form.SEAT_OR_NONE, options)
            if answer.choice is not None:
                table.poison = False
                table.show(f"你毒了{answer.choice}号。", "note", answer.choice, [seat])
                return False, answer.choice
    return False, None


async def _save(table: Table, seat: int, target: int) -> bool:
    answer = await table.ask(seat, "save", f"{target}号被杀，是否用解药？", Form.YES_NO)
    if not answer.choice:
        return False
    table.antidote = False
    table.show(f"你救了{target}号。", "note", target, [seat])
    return True


async def _seer(table: Table) -> None:
    for seat in table.of(Role.SEER):
        options = [each for each in table.living if each != seat]
        answer = await table.ask(seat, "check", "今夜查验谁？", Form.SEAT, options)
        if answer.choice is None:
            return
        wolf = table.roles[answer.choice] in WOLVES
        table.write("checked", seat=answer.choice, wolf=wolf)
        kind, text = ("found_wolf", "狼人") if wolf else ("found_good", "好人")
        table.show(f"查验：{answer.choice}号是{text}。", kind, answer.choice, [seat])
