"""Train the agent of `agent.py` that gets images; two lines name the agents."""

from __future__ import annotations

import agent

import agl_core as agl

agent.look = agl.agent_scope("looker")(agent.look)
agent.report = agl.agent_scope("reporter")(agent.report)


def run_agent(task: agl.Task) -> tuple[str, str]:
    """Run the program on one image."""
    return agent.answer(agent.picture(**task.input))


def tasks() -> list[agl.Task]:
    """Return one task per colour and width."""
    return [
        agl.Task(id=f"{colour}-{width}", input={"colour": colour, "width": width})
        for colour in agent.COLOURS
        for width in agent.WIDTHS
    ]


def reward(task: agl.Task, output: tuple[str, str], attempt: agl.AttemptRecord) -> float:  # noqa: ARG001
    """Return 0.5 for the right colour plus 0.5 for the right answer to "Warm?"."""
    colour, warm = output
    shown = task.input["colour"]
    right = "yes" if shown in agent.WARM else "no"
    return (float(colour == shown) + float(warm == right)) / 2
