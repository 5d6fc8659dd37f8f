"""A planner, an executor, a verifier and a generator that share a memory; no framework.

A query is a way through eight doors. In each turn the planner chooses a tool for the door that the
memory ends with, the executor writes the command, and the verifier says whether to continue. In the
end the generator reads the memory and answers. The program contains no training code; the
environment variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set its endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache

from openai import OpenAI

MODEL = "gpt-4o-mini"
DOORS = {
    "locked": "key",
    "dark": "lamp",
    "flooded": "pump",
    "buried": "shovel",
    "burning": "hose",
    "frozen": "torch",
}
"""State of a door, and the only tool that opens such a door."""
WAY, MOST_TURNS = 8, 10
"""Doors of a query, and most turns of an answer: two may be wasted."""
OUT, LOST = "out", "lost"
SYSTEM = {
    "planner": f"You plan. Name one tool: {', '.join(DOORS.values())}.",
    "executor": "You execute. Write the command for the tool.",
    "verifier": "You verify. Say stop if no door is left, else continue.",
    "generator": "You answer. Say out if no door is left, else lost.",
}

Role = Callable[[str, int], AbstractContextManager[object]]
"""Entered around a call of a role, with the role's name and the number of the turn."""
Turn = Callable[[int, bool], None]
"""Called at the end of a turn, with its number and whether it opened the door."""


@dataclass
class Memory:
    """What the four roles share: the way, and a line for each turn."""

    doors: Sequence[str]
    opened: int = 0
    lines: list[str] = field(default_factory=list[str])

    @property
    def left(self) -> int:
        """Number of doors that are not open."""
        return len(self.doors) - self.opened

    def read(self, role: str, tool: str = "") -> str:
        """Return what a role reads of the memory."""
        if role == "planner":
            return f"The door is {self.doors[self.opened]}."
        if role == "executor":
            return f"Tool: {tool}."
        return f"Doors left: {self.left}."

    def run(self, command: str) -> bool:
        """Run a command on the next door; remember whether it opened."""
        opened = command == f"use {DOORS[self.doors[self.opened]]}"
        self.opened += opened
        self.lines.append(f"{command}: {'opened' if opened else 'nothing happened'}")
        return opened


def prompt(role: str, content: str) -> list[dict[str, str]]:
    """Return the messages of a role."""
    return [{"role": "system", "content": SYSTEM[role]}, {"role": "user", "content": content}]


def solve(doors: Sequence[str], *, role: Role, turn: Turn | None = None) -> str:
    """Go through the doors; return the generator's answer."""
    memory = Memory(doors)
    for number in range(MOST_TURNS):
        with role("planner", number):
            tool = ask("planner", memory.read("planner"))
        with role("executor", number):
            command = ask("executor", memory.read("executor", tool))
        opened = memory.run(command)
        if turn is not None:
            turn(number, opened)
        with role("verifier", number):
            verdict = ask("verifier", memory.read("verifier"))
        if verdict == "stop" or not memory.left:
            break
    with role("generator", 0):
        return ask("generator", memory.read("generator"))


def ask(role: str, content: str) -> str:
    """Ask the model for the answer of a role."""
    reply = client().chat.completions.create(
        model=MODEL, messages=prompt(role, content), max_completion_tokens=8
    )
    return (reply.choices[0].message.content or "").strip()


@cache
def client() -> OpenAI:
    """Create the client at first use; it reads address and key from the environment."""
    return OpenAI()
