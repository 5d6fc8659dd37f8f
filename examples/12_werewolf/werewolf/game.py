"""One game from the deal to its end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from werewolf.asking import Watcher
from werewolf.day import day
from werewolf.night import night
from werewolf.rules import MAX_ROUNDS
from werewolf.table import Seating, Table


@dataclass(frozen=True, slots=True)
class Result:
    """How a game ended."""

    winner: str | None
    """``wolves`` or ``good``; None if the last round ended without a winner."""
    rounds: int
    log: list[dict[str, Any]]

    def lines(self) -> str:
        """Return the log as JSON lines."""
        return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in self.log)


async def play(seating: Seating, seed: int | str, watcher: Watcher | None = None) -> Result:
    """Play one game.

    The seed decides cards, ties and the order of speeches. Every question is asked a bounded
    number of times and the rounds are bounded, so a game ends if every answer does.
    """
    table = Table(seating, seed, watcher)
    winner = None
    while winner is None and table.round < MAX_ROUNDS:
        table.round += 1
        table.show(f"第{table.round}夜。", "night")
        await night(table)
        table.show(f"第{table.round}天。", "day")
        await day(table)
        winner = table.winner()
    table.write("end", winner=winner)
    table.watcher.on_end(winner)
    return Result(winner, table.round, table.log)
