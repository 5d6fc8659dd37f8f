"""Runs the game of `program.py` with two learners, or with one and the model that it began as."""

from __future__ import annotations

from itertools import product

import program

import agl_core as agl

SIZES = range(5, program.LARGEST + 1)
SAMPLES = 12
"""Games of each size, learner and first player in an evaluation."""


def run_agent(task: agl.Task) -> str:
    """Play one game; a learner gets 1 for winning and 0 for losing, on a channel of its name.

    A task with a ``learner`` is an evaluation: the other player is played by the frozen policy.
    """
    learners = [task.metadata["learner"]] if "learner" in task.metadata else program.PLAYERS
    for player in program.PLAYERS:
        if player not in learners:
            agl.alias(player, "start")
    game = program.play(task.input["sticks"], first=task.input["first"], seat=agl.agent_scope)
    moved = {player for player, _ in game.moves}
    for player in moved.intersection(learners):
        agl.emit_reward(float(game.winner == player), agent=player, channel=player)
    if "learner" in task.metadata and not moved.intersection(learners):
        agl.emit_reward(1.0, channel=learners[0])  # the other's first answer was not a move
    return game.winner


def train_tasks() -> list[agl.Task]:
    """Return one game for each number of sticks and first player."""
    return [
        agl.Task(id=f"{sticks}-{first}", input={"sticks": sticks, "first": first})
        for sticks, first in product(SIZES, program.PLAYERS)
    ]


def held_out_tasks() -> list[agl.Task]:
    """Return games of each learner against the frozen policy."""
    return [
        agl.Task(
            id=f"{learner}-{sticks}-{first}-{number}",
            input={"sticks": sticks, "first": first},
            metadata={"learner": learner},
        )
        for learner, sticks, first, number in product(
            program.PLAYERS, SIZES, program.PLAYERS, range(SAMPLES)
        )
    ]
