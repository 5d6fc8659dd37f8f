"""Train one camp of werewolf: what training adds to the program.

A task is a game: ``seed`` decides its cards; ``camp``, ``wolves``, ``good`` or ``both``, is played by
agents, the other camp is scripted, or played by agents too where ``others`` is ``agents``. An agent
is named by its seat and trained as its camp, or as its role where ``alias`` is ``role``.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from werewolf.asking import Player, Request, Watcher
from werewolf.forms import Form, is_chinese
from werewolf.game import play
from werewolf.prompts import BRIEF, FULL, Style, alias, name
from werewolf.referee import judge
from werewolf.rules import Role, camp
from werewolf.scripted import Villager, Wolf

import agl_core as agl

if version("agentscope").startswith("1."):
    # Otherwise AgentScope prints every message of an agent.
    os.environ["AGENTSCOPE_DISABLE_CONSOLE_OUTPUT"] = "true"
    from agl_agentscope import PromptBudgetFormatter
    from werewolf.agentscope1 import Seat

    def seat(style: Style) -> Player:
        """Return a seat; prompts that grow are cut to the run's ``prompt_budgets``."""
        return Seat(style, None if style.short else PromptBudgetFormatter)
else:
    from agl_agentscope import PromptBudgetMiddleware
    from werewolf.agentscope2 import Seat

    def seat(style: Style) -> Player:
        """Return a seat; prompts that grow are cut to the run's ``prompt_budgets``."""
        return Seat(style, [] if style.short else [PromptBudgetMiddleware()])


STYLES = {
    "brief": BRIEF,
    "full": FULL,
    "remembers": Style(remembers=True),
}
UNCLEAR, NOT_CHINESE = -0.2, -0.4
"""Rewards of one call, where a win counts 1."""
TRAIN_GAMES, HELD_OUT_GAMES = 400, 200


@dataclass(frozen=True, slots=True)
class Said:
    """One answer of an agent, as the program judged it."""

    seat: str
    phase: str
    unclear: bool
    chinese: bool


class Judged(Watcher):
    """Sets the aliases, and keeps what the agents answered."""

    def __init__(self, task: agl.Task) -> None:
        """Take the game's task."""
        self.kind = task.input.get("alias", "camp")
        self.agents = {task.input["camp"]}
        if task.input.get("others") == "agents" or "both" in self.agents:
            self.agents = {"wolves", "good"}
        self.camps: dict[str, str] = {}
        """Alias to camp."""
        self.said: list[Said] = []

    def on_deal(self, roles: dict[int, Role]) -> None:
        """Give each agent what it is trained as, before its first call."""
        for number, role in roles.items():
            if camp(role) in self.agents:
                known_as = alias(role, self.kind)
                self.camps[known_as] = camp(role)
                agl.alias(name(number), known_as)

    def on_answer(self, request: Request, text: str, problem: str) -> None:
        """Keep what the program thinks of an answer."""
        if camp(request.role) in self.agents:
            speech = request.form in (Form.SPEECH, Form.SPEECH_YES_NO)
            words = text.strip() if speech else "".join(filter(str.isalpha, text))
            chinese = is_chinese(words) or not words
            said = Said(name(request.seat), request.phase, bool(problem), chinese)
            self.said.append(said)


async def run_agent(task: agl.Task) -> dict[str, Any]:
    """Play one game and return how it ended, with the program's view of each answer.

    Raises:
        RefereeError: the referee, who knows the rules by itself, disagrees with the game.
    """
    judged = Judged(task)
    seed, style = task.input["seed"], STYLES[task.input.get("style", "full")]

    def seating(number: int, role: Role) -> Player:
        if camp(role) in judged.agents:
            return seat(style)
        script = Wolf if camp(role) == "wolves" else Villager
        return script(f"{seed} {number}")

    result = await play(seating, seed, judged)
    judge(result.log)
    return {
        "winner": result.winner,
        "rounds": result.rounds,
        "camps": judged.camps,
        "said": [asdict(each) for each in judged.said],
    }


def reward(task: agl.Task, output: dict[str, Any], attempt: agl.AttemptRecord) -> agl.Score:
    """Return 1 for a game that the trained camp has won, else 0; with both, give each its own.

    In training, single calls lose for an answer that is unclear or a speech in another language.
    """
    if attempt.rollout.mode == "train":
        judge_calls(output["said"], attempt)
    winner = output["winner"]
    why = f"{winner or 'neither camp'} won in round {output['rounds']}"
    if task.input["camp"] != "both":
        return agl.Score(winner == task.input["camp"], why)
    for known_as, its in output["camps"].items():
        agl.emit_reward(float(winner == its), agent=known_as, why=why)
    return agl.Score(0.0, why)


def judge_calls(said: list[dict[str, Any]], attempt: agl.AttemptRecord) -> None:
    """Reward single calls: the answers of a seat are its calls, in their order."""
    calls: dict[str, list[str]] = {}
    for call in attempt.calls:
        if not call.error:
            calls.setdefault(call.agent, []).append(call.record.id)
    answers: dict[str, list[dict[str, Any]]] = {}
    for each in said:
        answers.setdefault(each["seat"], []).append(each)
    for agent, judged in answers.items():
        for call, answer in zip(calls.get(agent, []), judged, strict=False):
            if answer["unclear"]:
                agl.emit_reward(UNCLEAR, "form", why="the answer is unclear", call=call)
            if not answer["chinese"]:
                agl.emit_reward(NOT_CHINESE, "language", why="the speech is not Chinese", call=call)


def games(first: int, count: int, **settings: str) -> list[agl.Task]:
    """Return games whose cards are dealt by the seeds from ``first`` on."""
    return [
        agl.Task(id=f"game-{seed}", input={"seed": seed, "camp": "wolves", **settings})
        for seed in range(first, first + count)
    ]


def train_tasks() -> list[agl.Task]:
    """Return games for the tiny model."""
    return games(0, TRAIN_GAMES, style="brief")


def held_out_tasks() -> list[agl.Task]:
    """Return games whose cards are not those of the training games."""
    return games(1_000_000, HELD_OUT_GAMES, style="brief")


def full_train_tasks() -> list[agl.Task]:
    """Return games for a model that follows instructions, in which agents play both camps."""
    return games(0, TRAIN_GAMES, style="full", others="agents", alias="camp")


def full_held_out_tasks() -> list[agl.Task]:
    """Return a few held-out games for such a model."""
    return games(1_000_000, 8, style="full", others="agents", alias="camp")
