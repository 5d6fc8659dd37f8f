"""Captured prompts of agents whose role, backstory and goal have the task's inputs in them."""

from __future__ import annotations

import msgspec
from agl_testing.scenario import ANSWER
from crewai import Crew, Process

from .programs import agent, model, task

DEFAULT = {"system_template": None, "prompt_template": None}


def crew(job):
    """Two agents with CrewAI's own templates; the item is an input."""
    llm = model(job, "any")
    planner, writer = (
        agent(
            job,
            f"{name} of {{item}}",
            goal=f"{name} what {{item}} costs",
            backstory=f"A {name} who knows all prices of {{item}} by heart.",
            llm=llm,
            **DEFAULT,
        )
        for name in ("planner", "writer")
    )
    tasks = [task("Plan {item}.", planner), task("Say it.", writer)]
    return Crew(agents=[planner, writer], tasks=tasks, process=Process.sequential)


def selling(item):
    return lambda job: crew(job).kickoff(inputs={"item": item}).raw


async def test_the_prompt_is_learned_over_tasks_and_replaced_for_one_role(bench):
    plain = [await bench.one(selling(item)) for item in ("tea", "old ink")]
    assert [played.output for played in plain] == [ANSWER, ANSWER]
    learned = bench.learn(plain, agents=("writer of *",))
    assert learned.known == (
        "You are writer of {value_1}. A writer who knows all prices of {value_1} by heart.\n"
        "Your personal goal is: writer what {value_1} costs"
    )
    tuned = msgspec.structs.replace(learned, template="Name the price of {value_1} in coins.")
    played = await bench.one(selling("green tea"), prompts={"prompt": tuned})
    heads = {call.agent: call.messages[0] for call in played.calls}
    assert heads["writer of green tea"] == {
        "role": "system",
        "content": "Name the price of green tea in coins.",
    }
    assert heads["planner of green tea"]["content"].startswith("You are planner of green tea.")
    assert [call.messages for call in played.calls] == [
        answer.body["messages"] for answer in bench.fake.log[-2:]
    ]
