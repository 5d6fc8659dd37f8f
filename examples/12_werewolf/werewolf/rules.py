"""Roles, camps and numbers of the game."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """A card. The value is its name in the log."""

    VILLAGER = "villager"
    WOLF = "wolf"
    WOLF_KING = "wolf_king"
    SEER = "seer"
    WITCH = "witch"
    HUNTER = "hunter"
    GUARD = "guard"


CHINESE = {
    Role.VILLAGER: "村民",
    Role.WOLF: "狼人",
    Role.WOLF_KING: "狼王",
    Role.SEER: "预言家",
    Role.WITCH: "女巫",
    Role.HUNTER: "猎人",
    Role.GUARD: "守卫",
}
WOLVES = frozenset({Role.WOLF, Role.WOLF_KING})
GODS = frozenset({Role.SEER, Role.WITCH, Role.HUNTER, Role.GUARD})
GUNS = frozenset({Role.HUNTER, Role.WOLF_KING})
"""Who may shoot when they die, unless by poison or by their own explosion."""
DECK = (
    *[Role.VILLAGER] * 4,
    *[Role.WOLF] * 3,
    Role.WOLF_KING,
    Role.SEER,
    Role.WITCH,
    Role.HUNTER,
    Role.GUARD,
)
SEATS = tuple(range(1, len(DECK) + 1))
MAX_ROUNDS = 30
"""After that many nights and days without a winner, the game ends without one."""
MAX_TRIES = 3
"""Answers to one question; after the last wrong one the question counts as declined."""
MAX_TALKS = 3
"""Passes of the wolves' talk in one night."""
SHERIFF_VOTES = 1.5


def camp(role: Role) -> str:
    """Return ``wolves`` or ``good``."""
    return "wolves" if role in WOLVES else "good"
