"""How seats leave the game: explosions, deaths, shots that may chain, and the badge."""

from __future__ import annotations

from werewolf.forms import Form
from werewolf.rules import GUNS, Role
from werewolf.table import Table, named

_WORDS = {
    "wolves": "昨夜死亡",
    "poison": "昨夜死亡",
    "shot": "被枪杀",
    "exile": "被放逐",
    "explosion": "自爆",
}


async def announce(table: Table, *, words: bool) -> None:
    """Announce the deaths of the night."""
    if not table.tonight:
        table.show("昨夜平安。", "peace")
    deaths, table.tonight = table.tonight, {}
    await bury(table, deaths, words=words)


async def bury(table: Table, deaths: dict[int, str], *, words: bool) -> None:
    """Remove seats at once; then each has its last words and shot, and passes the badge."""
    for seat in sorted(deaths):
        _remove(table, seat, deaths[seat])
    for seat in sorted(deaths):
        await _leave(table, seat, deaths[seat], words=words)


async def explosion(table: Table) -> int | None:
    """Ask the ordinary wolves whether one explodes; the lowest seat of several does."""
    wolves = [seat for seat in table.of(Role.WOLF) if seat not in table.tonight]
    answers = await table.ask_all(wolves, "explode", "是否自爆？", Form.YES_NO)
    return next((seat for seat in wolves if answers[seat].choice), None)


async def explode(table: Table, seat: int) -> None:
    """End the day by an explosion, after which the night's deaths are announced if they wait.

    Explosions on two days running destroy the badge.
    """
    table.explosions.add(table.round)
    if table.round - 1 in table.explosions and (table.election_due or table.sheriff):
        table.election_due, table.sheriff = False, None
        table.write("badge", sheriff=None, why="explosions")
        table.show("连续两天自爆，警徽销毁。", "badge")
    deaths, table.tonight = {**table.tonight, seat: "explosion"}, {}
    await bury(table, deaths, words=False)


def _remove(table: Table, seat: int, cause: str) -> None:
    table.living.remove(seat)
    table.write("death", seat=seat, cause=cause)
    table.show(f"{seat}号{_WORDS[cause]}。", "died", seat)


async def _leave(table: Table, seat: int, cause: str, *, words: bool) -> None:
    if words:
        await table.speak(seat, "last_words", "请留遗言。")
    if table.roles[seat] in GUNS and cause not in ("poison", "explosion") and table.living:
        answer = await table.ask(seat, "shoot", "是否开枪，打谁？", Form.SEAT_OR_NONE, table.living)
        if answer.choice is not None:
            table.show(f"{seat}号开枪打{answer.choice}号。", "shot", answer.choice)
            _remove(table, answer.choice, "shot")
            await _leave(table, answer.choice, "shot", words=False)
    if table.sheriff == seat:
        await _pass_badge(table, seat)


async def _pass_badge(table: Table, seat: int) -> None:
    heir = None
    if table.living:
        question = "警徽交给谁？无表示撕掉。"
        heir = (await table.ask(seat, "heir", question, Form.SEAT_OR_NONE, table.living)).choice
    table.sheriff = heir
    table.write("badge", sheriff=heir, why="passed" if heir else "torn")
    table.show(f"警徽交给{named([heir])}。" if heir else "警徽被撕掉。", "badge", heir)
