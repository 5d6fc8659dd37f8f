"""The canonical scenario in CrewAI, and the agents it is made of."""

import asyncio

from agl_testing.scenario import JUDGE, PLANNER, SYSTEM, TOOL_RESULT, WRITER, ScenarioProgram
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from pydantic import BaseModel


class Price(BaseModel):
    item: str


@tool("lookup")
def lookup(item: str) -> str:
    """Look up what an item costs."""
    return TOOL_RESULT


def model(job, agent, **fields):
    return LLM(
        model=job.model(agent),
        provider="openai",
        base_url=job.base_url,
        api_key=job.api_key,
        **fields,
    )


def agent(job, role, *tools, stream=False, **fields):
    """An agent whose prompts do not say which one it is."""
    plain = {
        "goal": "Answer.",
        "backstory": "A shop.",
        "llm": model(job, role, stream=stream),
        "tools": list(tools),
        "system_template": SYSTEM,
        "prompt_template": "{{ .Prompt }}",
        "respect_context_window": False,
        "use_better_compaction": False,
    }
    return Agent(role=role, **{**plain, **fields})


def task(text, agent=None, **fields):
    return Task(description=text, expected_output="A price.", agent=agent, **fields)


def shop(job, *, stream=False):
    """Planner and writer as the agents of two tasks; the writer gets what the planner said."""
    planner, writer = agent(job, PLANNER, lookup, stream=stream), agent(job, WRITER, stream=stream)
    plan = task(job.question, planner)
    write = task("Say it.", writer, context=[plan])
    return Crew(name="shop", agents=[planner, writer], tasks=[plan, write])


class CrewAIProgram(ScenarioProgram):
    """Two agents as one crew."""

    sends_no_head = "with templates of its own an agent sends one user message"

    def run(self, job):
        return shop(job).kickoff().raw

    async def arun(self, job):
        return (await shop(job).akickoff()).raw

    def stream(self, job):
        return shop(job, stream=True).kickoff().raw

    async def astream(self, job):
        return (await shop(job, stream=True).akickoff()).raw

    def structured(self, job):
        answer = agent(job, WRITER).kickoff(job.question, response_format=Price)
        return answer.pydantic.model_dump()

    async def parallel(self, job):
        agents = [agent(job, PLANNER), agent(job, WRITER)]
        answers = await asyncio.gather(*(each.kickoff_async(job.question) for each in agents))
        return [answer.raw for answer in answers]

    def delegate(self, job):
        writer = agent(job, WRITER)

        @tool("ask_writer")
        def ask_writer(item: str) -> str:
            """Ask the writer."""
            return writer.kickoff(item).raw

        return agent(job, PLANNER, ask_writer).kickoff(job.question).raw

    def judge(self, job):
        @tool("review")
        def review(item: str) -> str:
            """Ask the model behind the judge."""
            return model(job, JUDGE).call(item)

        return agent(job, PLANNER, review).kickoff(job.question).raw

    def fail(self, job, error):
        """Fails in a callback: what a tool raises, CrewAI tells the model and goes on."""

        def stop(step):
            raise error

        planner = agent(job, PLANNER, lookup, step_callback=stop, max_retry_limit=0)
        return Crew(agents=[planner], tasks=[task(job.question, planner)]).kickoff().raw
