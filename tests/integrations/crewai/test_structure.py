"""Crews, delegation, hierarchies, flows and threads: who speaks, and under what."""

import asyncio
import json
from pathlib import Path

import pytest
from agl_testing._captured import ancestors, check_identity, check_tokens, triplets
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, JUDGE, PLANNER, WRITER, outline
from crewai import Crew, Process
from crewai.flow import Flow, and_, listen, start
from crewai.tools import tool
from pydantic import BaseModel

from agl_core import semconv
from agl_core.errors import CaptureError
from agl_core.tracing import UNNAMED, agent_scope
from agl_core.types import SpanKind

from .programs import CrewAIProgram, agent, lookup, model, task

GOLDEN = Path(__file__).parent / "golden" / "skeleton.txt"
MANAGER = "Crew Manager"


def speakers(played, bench, names=None):
    if played.error is not None:
        raise played.error
    check_tokens(played, bench.fake.log)
    check_identity(played, names=names)
    return [call.agent for call in played.calls]


def named(spans, kind, name):
    return [span for span in spans if span.kind is kind and span.name == name]


def calling(name, arguments, *, unless="tool"):
    """A model that calls that tool once, where it has it, and answers then."""

    def script(body):
        tools = {each["function"]["name"] for each in body.get("tools") or ()}
        if name in tools and body["messages"][-1]["role"] != unless:
            return FakeReply(tool_calls=[{"name": name, "arguments": json.dumps(arguments)}])
        return FakeReply(text=ANSWER)

    return script


async def test_the_skeleton_is_the_golden_one(bench):
    played = await bench.one(CrewAIProgram().run)
    assert outline(played.spans) == GOLDEN.read_text(encoding="utf-8").splitlines()


async def test_the_task_before_is_context_of_the_next(bench):
    played = await bench.one(CrewAIProgram().run)
    (said,) = named(played.spans, SpanKind.MESSAGE, semconv.AGL_MESSAGE)
    assert said.attributes[semconv.AGL_MESSAGE] == {"role": "context", "content": ANSWER}


@pytest.mark.parametrize(
    ("name", "request_field"),
    [("delegate_work_to_coworker", "task"), ("ask_question_to_coworker", "question")],
)
async def test_a_coworker_speaks_for_itself_inside_who_asks(bench, name, request_field):
    asked = {request_field: "How much is tea?", "context": "A shop.", "coworker": WRITER}
    bench.fake.script = calling(name, asked)

    def program(job):
        planner = agent(job, PLANNER, allow_delegation=True)
        writer = agent(job, WRITER)
        return Crew(agents=[planner, writer], tasks=[task(job.question, planner)]).kickoff().raw

    played = await bench.one(program)
    assert speakers(played, bench) == [PLANNER, WRITER, PLANNER]
    (used,) = [span for span in played.spans if span.kind is SpanKind.TOOL]
    assert used.name == name
    assert used.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == asked
    assert used.attributes[semconv.GEN_AI_TOOL_RESULT] == ANSWER
    (inner,) = named(played.spans, SpanKind.AGENT, WRITER)
    assert used in ancestors(played.spans, inner)
    (said,) = named(played.spans, SpanKind.MESSAGE, semconv.AGL_MESSAGE)
    handoff = said.attributes[semconv.AGL_MESSAGE]
    assert (handoff["role"], handoff["from"], handoff["to"]) == ("handoff", PLANNER, WRITER)
    assert "How much is tea?" in handoff["content"]
    assert said.parent_id == used.id
    assert [each.agent for each in triplets(played, WRITER)] == [WRITER]


async def test_the_manager_of_a_hierarchy_is_an_agent(bench):
    asked = {"task": "Price tea.", "context": "A shop.", "coworker": WRITER}
    bench.fake.script = calling("delegate_work_to_coworker", asked)

    def program(job):
        crew = Crew(
            agents=[agent(job, WRITER)],
            tasks=[task(job.question)],
            process=Process.hierarchical,
            manager_llm=model(job, MANAGER),
        )
        return crew.kickoff().raw

    played = await bench.one(program)
    assert speakers(played, bench) == [MANAGER, WRITER, MANAGER]
    (inner,) = named(played.spans, SpanKind.AGENT, WRITER)
    around = {span.agent for span in ancestors(played.spans, inner)}
    assert MANAGER in around


def shop_flow(job):
    class Shop(Flow):
        @start()
        def outline(self):
            return model(job, "outline").call(job.question)

        @listen(outline)
        async def plan(self, outline):
            planner = agent(job, PLANNER, lookup)
            return (await Crew(agents=[planner], tasks=[task(outline, planner)]).akickoff()).raw

        @listen(plan)
        def write(self, plan):
            return agent(job, WRITER).kickoff(plan)

    return Shop()


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_flows_hold_crews_agents_and_calls_of_their_own(bench, tree, form):
    def program(job):
        return shop_flow(job).kickoff().raw

    async def aprogram(job):
        return (await shop_flow(job).kickoff_async()).raw

    played = await bench.one(program if form == "sync" else aprogram)
    assert speakers(played, bench) == ["outline", PLANNER, PLANNER, WRITER]
    assert tree(played.spans) == [
        "operation Shop -",
        ". agent outline outline",
        ". . llm chat outline",
        ". operation plan -",
        ". . operation crew -",
        f". . . operation {ANSWER} -",
        ". . . . agent planner planner",
        ". . . . . llm chat planner",
        ". . . . . tool lookup planner",
        ". . . . . llm chat planner",
        ". operation write -",
        ". . agent writer writer",
        ". . . llm chat writer",
    ]


async def test_methods_of_a_flow_that_run_at_once_keep_their_names(bench):
    class Both(Flow):
        @start()
        def first(self):
            return model(self.job, "first").call("Say it.")

        @start()
        def second(self):
            return model(self.job, "second").call("Say it.")

        @listen(and_(first, second))
        def done(self):
            return ANSWER

    def program(job):
        flow = Both()
        object.__setattr__(flow, "job", job)
        return flow.kickoff()

    bench.interleave(2)
    played = await bench.one(program)
    assert sorted(speakers(played, bench)) == ["first", "second"]


async def test_tasks_in_threads_of_their_own(bench):
    def program(job):
        agents = [agent(job, PLANNER), agent(job, WRITER)]
        tasks = [task(job.question, each, async_execution=True) for each in agents]
        last = task("Say it.", agent(job, "closer"), context=tasks)
        return Crew(agents=[*agents, last.agent], tasks=[*tasks, last]).kickoff().raw

    played = await bench.one(program)
    assert sorted(speakers(played, bench)) == ["closer", PLANNER, WRITER]


async def test_an_agent_with_a_time_limit_runs_in_a_thread_of_its_own(bench):
    def program(job):
        planner = agent(job, PLANNER, lookup, max_execution_time=60)
        return Crew(agents=[planner], tasks=[task(job.question, planner)]).kickoff().raw

    played = await bench.one(program)
    assert speakers(played, bench) == [PLANNER, PLANNER]


async def test_tools_that_run_at_once(bench, tree):
    def script(body):
        if body["messages"][-1]["role"] == "tool":
            return FakeReply(text=ANSWER)
        uses = [{"name": "lookup", "arguments": json.dumps({"item": i})} for i in ("tea", "rum")]
        return FakeReply(tool_calls=uses)

    bench.fake.script = script
    played = await bench.one(lambda job: agent(job, PLANNER, lookup).kickoff(job.question).raw)
    assert speakers(played, bench) == [PLANNER, PLANNER]
    used = [span for span in played.spans if span.kind is SpanKind.TOOL]
    assert sorted(each.attributes[semconv.GEN_AI_TOOL_ARGUMENTS]["item"] for each in used) == [
        "rum",
        "tea",
    ]
    assert len({each.parent_id for each in used}) == 1


async def test_a_scope_of_the_users_names_what_a_tool_asks(bench):
    def program(job):
        @tool("review")
        def review(item: str) -> str:
            """Ask a judge."""
            with agent_scope(JUDGE, trainable=False):
                return model(job, JUDGE).call(item)

        return agent(job, PLANNER, review).kickoff(job.question).raw

    played = await bench.one(program)
    check_identity(played)
    said = [(call.agent, call.trainable) for call in played.calls]
    assert said == [(PLANNER, True), (JUDGE, False), (PLANNER, True)]


@pytest.mark.parametrize("role", ["shop/eu writer", "书写者", " writer \n", "writer: a {b} 100%"])
async def test_any_role_is_a_name(bench, role):
    def program(job):
        return agent(job, role).kickoff(job.question).raw

    played = await bench.one(program)
    assert [call.agent for call in played.calls] == [role.strip()]
    assert [each.agent for each in triplets(played, role.strip())] == [role.strip()]


async def test_two_agents_of_one_role_are_one_agent_in_two_runs(bench):
    def program(job):
        return [agent(job, WRITER).kickoff(job.question).raw for _ in range(2)]

    played = await bench.one(program)
    assert speakers(played, bench) == [WRITER, WRITER]
    assert len({call.agent_run_id for call in played.calls}) == 2


async def test_a_shared_agent_that_runs_twice_at_once(bench):
    async def program(job):
        shared = agent(job, WRITER)
        answers = await asyncio.gather(*(shared.kickoff_async(job.question) for _ in range(2)))
        return [answer.raw for answer in answers]

    played = await bench.one(program)
    assert speakers(played, bench) == [WRITER, WRITER]
    assert len({call.agent_run_id for call in played.calls}) == 2


async def test_one_crew_for_several_inputs(bench):
    def program(job):
        writer = agent(job, WRITER)
        crew = Crew(agents=[writer], tasks=[task("Price {item}.", writer)])
        return [each.raw for each in crew.kickoff_for_each([{"item": str(i)} for i in range(3)])]

    played = await bench.one(program)
    assert speakers(played, bench) == [WRITER] * 3
    assert len({call.agent_run_id for call in played.calls}) == 3


async def test_react_without_native_tools(bench):
    """CrewAI's own text format, which models without tool calls get."""
    turns = iter(['Thought: look\nAction: lookup\nAction Input: {"item": "tea"}', None])

    def script(body):
        del body
        return FakeReply(text=next(turns) or f"Thought: done\nFinal Answer: {ANSWER}")

    bench.fake.script = script

    def program(job):
        planner = agent(job, PLANNER, lookup)
        planner.llm.supports_function_calling = lambda: False
        return planner.kickoff(job.question).raw

    played = await bench.one(program)
    assert played.output == ANSWER
    assert speakers(played, bench) == [PLANNER, PLANNER]
    (used,) = [span for span in played.spans if span.kind is SpanKind.TOOL]
    assert used.attributes[semconv.GEN_AI_TOOL_RESULT] == "4 coins"


def checking(body):
    """A model that finds whatever it checks all right."""
    return FakeReply(text='{"valid": true}' if body.get("response_format") else ANSWER)


async def test_the_agent_that_checks_a_guardrail_is_crewais_own(bench, tree):
    bench.fake.script = checking

    def program(job):
        writer = agent(job, WRITER)
        tasks = [task(job.question, writer, guardrail="It names a price.") for _ in range(2)]
        return Crew(agents=[writer], tasks=tasks).kickoff().raw

    played = await bench.one(program)
    said = [(call.agent, call.trainable) for call in played.calls]
    assert said == [(WRITER, True), ("@guardrail", False)] * 2
    assert tree(played.spans)[:7] == [
        "operation crew -",
        ". operation What is the price of tea? (0) -",
        ". . agent writer writer",
        ". . . llm chat writer",
        ". . operation guardrail -",
        ". . . agent @guardrail @guardrail",
        ". . . . llm chat @guardrail",
    ]
    assert [*played.adapt("*").trajectories] == [WRITER]
    ran = [span for span in played.spans if span.kind is SpanKind.AGENT]
    assert "crewai.respect_context_window" not in ran[1].attributes


async def test_an_agents_own_guardrail_is_crewais_own_in_a_loop_too(bench):
    bench.fake.script = checking

    def program(job):
        writer = agent(job, WRITER, guardrail="It names a price.")
        return asyncio.run(writer.kickoff_async(job.question)).raw

    played = await bench.one(program)
    said = [(call.agent, call.trainable) for call in played.calls]
    assert said == [(WRITER, True), ("@guardrail", False)]


async def test_an_agent_that_the_users_own_guardrail_asks_is_the_users(bench):
    """Even if it has the role of CrewAI's."""

    def program(job):
        def guardrail(output):
            return True, agent(job, "Guardrail Agent").kickoff(output.raw).raw

        writer = agent(job, WRITER)
        return Crew(agents=[writer], tasks=[task("Say it.", writer, guardrail=guardrail)]).kickoff()

    played = await bench.one(program)
    assert speakers(played, bench) == [WRITER, "Guardrail Agent"]
    assert [call.trainable for call in played.calls] == [True, True]


def nameless(job, form):
    silent = agent(job, "", lookup)
    silent.llm = model(job, PLANNER)
    if form == "crew":
        return Crew(agents=[silent], tasks=[task(job.question, silent)]).kickoff().raw
    return silent.kickoff(job.question).raw


@pytest.mark.parametrize("form", ["crew", "agent"])
async def test_an_agent_without_a_role_belongs_to_the_scope_around_it(bench, form):
    def program(job):
        with agent_scope(PLANNER):
            return nameless(job, form)

    played = await bench.one(program)
    assert speakers(played, bench) == [PLANNER, PLANNER]
    assert named(played.spans, SpanKind.OPERATION, UNNAMED)
    assert len({call.agent_run_id for call in played.calls}) == 1
    assert [each.agent for each in triplets(played, PLANNER)] == [PLANNER, PLANNER]


async def test_an_agent_without_a_role_or_a_scope_is_nobody(bench):
    played = await bench.one(lambda job: nameless(job, "agent"))
    assert [call.agent for call in played.calls] == ["", ""]
    with pytest.raises(CaptureError, match="no agent"):
        played.adapt(PLANNER)


async def test_what_crewai_converts_for_an_agent_without_a_role_is_its_own(bench):
    class Price(BaseModel):
        item: str

    def program(job):
        with agent_scope(PLANNER):
            silent = agent(job, "", lookup)
            silent.llm = model(job, PLANNER)
            asked = task(job.question, silent, output_pydantic=Price)
            return Crew(agents=[silent], tasks=[asked]).kickoff().pydantic

    played = await bench.one(program)
    said = {call.agent: call.trainable for call in played.calls}
    assert said == {PLANNER: True, "@crewai": False}
