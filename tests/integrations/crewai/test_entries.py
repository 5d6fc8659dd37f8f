"""What leaves CrewAI without a word of its own: all that was begun inside ends there."""

import asyncio
import inspect
import threading

import openai
import pytest
from agl_crewai import AglEventListener, _entries
from agl_crewai._integration import CrewAIIntegration
from agl_testing._captured import triplets
from agl_testing.bench import Bench
from agl_testing.scenario import ANSWER, JUDGE, PLANNER, WRITER
from crewai import Crew
from crewai.flow import Flow, listen, start
from crewai.flow.async_feedback import HumanFeedbackPending
from crewai.flow.human_feedback import human_feedback
from crewai.flow.persistence import SQLiteFlowPersistence
from crewai.lite_agent import LiteAgent
from crewai.tools import tool

from agl_core.errors import CaptureError, ConfigError
from agl_core.tracing import agent_scope
from agl_core.types import SpanKind

from .programs import agent, lookup, model, task

pytestmark = pytest.mark.filterwarnings("ignore:LiteAgent is deprecated:FutureWarning")


PATIENCE_S = 30.0


class Stop(BaseException):
    """Passes every ``except Exception``."""


def stop(*args, **kwargs):
    raise Stop


def checks(output):
    raise Stop


class Cancelling:
    """Cancels the task that asks when its first request has reached the model."""

    def __init__(self, bench):
        self._task = None
        self._left = asyncio.Event()
        bench.fake.before_send = self._before_send

    async def _before_send(self, answer, position):
        if self._task is not None:
            self._task.cancel()
            self._task = None
            await self._left.wait()

    async def around(self, coroutine):
        self._task = asyncio.current_task()
        try:
            await coroutine
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
            return
        finally:
            self._left.set()
        raise AssertionError("nobody cancelled")


async def judged(job):
    """A model call that is none of CrewAI's."""
    async with openai.AsyncOpenAI(base_url=job.base_url, api_key=job.api_key) as client:
        asked = [{"role": "user", "content": "How good is it?"}]
        await client.chat.completions.create(model=job.model(JUDGE), messages=asked)


def crew(job, **fields):
    writer = agent(job, WRITER, lookup, **fields)
    return Crew(agents=[writer], tasks=[task(job.question, writer)])


class Priced(Flow):
    """One method, which asks an agent."""

    @start()
    async def price(self):
        return (await agent(self.job, WRITER).kickoff_async("How much is tea?")).raw


def flow(job):
    made = Priced()
    object.__setattr__(made, "job", job)
    return made


ASYNC = {
    "crew": lambda job: crew(job).akickoff(),
    "agent": lambda job: agent(job, WRITER).kickoff_async(job.question),
    "agent at a task": lambda job: agent(job, WRITER).aexecute_task(task(job.question)),
    "task": lambda job: task(job.question).aexecute_sync(agent(job, WRITER)),
    "flow": lambda job: flow(job).kickoff_async(),
    "model": lambda job: model(job, WRITER).acall(job.question),
}
SYNC = {
    "crew": lambda job: crew(job, step_callback=stop).kickoff(),
    "agent": lambda job: agent(job, WRITER, lookup, step_callback=stop).kickoff(job.question),
    "agent at a task": lambda job: agent(job, WRITER, lookup, step_callback=stop).execute_task(
        task(job.question)
    ),
    "task": lambda job: task(job.question).execute_sync(
        agent(job, WRITER, lookup, step_callback=stop)
    ),
    "lite agent": lambda job: LiteAgent(
        role=WRITER, goal="Answer.", backstory="A shop.", llm=model(job, WRITER), guardrail=checks
    ).kickoff(job.question),
    "model": lambda job: model(job, WRITER).call(
        job.question, tools=[LOOKUP], available_functions={"lookup": stop}
    ),
}
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up what an item costs.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
    },
}


def check_left(played, error):
    """All but the judge's call ended with the exception, and that call is nobody's."""
    if played.error is not None:
        raise played.error
    spans = [span for span in played.spans if span.kind is not SpanKind.REWARD]
    asked = spans.pop()
    assert (asked.kind, asked.agent, asked.parent_id) == (SpanKind.LLM, None, None)
    assert spans
    cut_off = [span for span in spans if span.status == "error"]
    assert {span.error.rpartition(".")[2].partition(":")[0] for span in cut_off} == {error}
    ended_before = {span.kind for span in spans if span not in cut_off}
    assert ended_before <= {SpanKind.LLM, SpanKind.TOOL}


@pytest.mark.parametrize("form", ASYNC)
async def test_what_is_cancelled_ends_so_and_the_next_call_is_nobodys(bench, form):
    cancelling = Cancelling(bench)

    async def program(job):
        await cancelling.around(ASYNC[form](job))
        await judged(job)

    played = await bench.one(program)
    check_left(played, "CancelledError")
    with pytest.raises(CaptureError, match="no agent"):
        played.adapt(WRITER)


@pytest.mark.parametrize("form", SYNC)
async def test_what_passes_every_handler_ends_all_that_it_leaves(bench, form):
    def program(job):
        with pytest.raises(Stop):
            SYNC[form](job)
        asyncio.run(judged(job))

    check_left(await bench.one(program), "Stop")


async def test_a_resumed_flow_that_is_cancelled(bench, tmp_path):
    class Later:
        def request_feedback(self, context, flow):
            raise HumanFeedbackPending(context=context)

    class Asked(Flow):
        @start()
        @human_feedback(message="Is that so?", provider=Later())
        def price(self):
            return ANSWER

        @listen(price)
        async def write(self, price):
            return await model(self.job, WRITER).acall("Say it.")

    cancelling = Cancelling(bench)

    async def program(job):
        kept = SQLiteFlowPersistence(str(tmp_path / "flows.db"))
        paused = await Asked(persistence=kept).kickoff_async()
        asked = Asked.from_pending(paused.context.flow_id, kept)
        object.__setattr__(asked, "job", job)
        await cancelling.around(asked.resume_async("Surely."))
        await judged(job)

    played = await bench.one(program)
    *_, resumed, answered, wrote, chat, asked, _ = played.spans
    assert [span.name for span in (resumed, answered, wrote, chat)] == [
        "Asked",
        "price",
        "write",
        "chat",
    ]
    assert {span.error for span in (resumed, wrote, chat)} == {"CancelledError"}
    assert (asked.agent, asked.parent_id) == (None, None)


async def test_a_listener_alone_sees_what_leaves(bench):
    del bench
    async with Bench.open(integrations=[]) as bare:
        cancelling = Cancelling(bare)
        listener = AglEventListener()

        async def program(job):
            await cancelling.around(crew(job).akickoff())
            await judged(job)

        try:
            check_left(await bare.one(program), "CancelledError")
        finally:
            listener.close()


async def test_what_somebody_else_has_wrapped_is_seen_to_leave(monkeypatch):
    """By a function that is not async itself, as it only hands the coroutine on."""
    theirs = Crew.akickoff
    monkeypatch.setattr(Crew, "akickoff", lambda self, inputs=None: theirs(self, inputs))
    async with Bench.open(integrations=[CrewAIIntegration()]) as bench:
        cancelling = Cancelling(bench)

        async def program(job):
            await cancelling.around(crew(job).akickoff())
            await judged(job)

        check_left(await bench.one(program), "CancelledError")


async def test_a_crew_that_is_tried_again_after_a_timeout(bench, tree):
    cancelling = Cancelling(bench)

    async def program(job):
        await cancelling.around(crew(job).akickoff())
        return (await crew(job).akickoff()).raw

    played = await bench.one(program)
    assert played.output == ANSWER
    again = [
        "operation crew -",
        ". operation What is the price of tea? (0) -",
        f". . agent {WRITER} {WRITER}",
        f". . . llm chat {WRITER}",
        f". . . tool lookup {WRITER}",
        f". . . llm chat {WRITER}",
    ]
    assert tree(played.spans)[4:] == again
    first, *others = [call.agent_run_id for call in played.calls]
    assert (len(others), len({*others})) == (2, 1)
    assert first not in others


async def test_the_scope_and_the_tool_around_are_as_before(bench):
    """Inside a user's scope inside an agent's tool, another agent is cut off."""

    def program(job):
        @tool("ask_writer")
        def ask_writer(item: str) -> str:
            """Ask the writer."""
            with agent_scope(JUDGE, trainable=False):
                with pytest.raises(Stop):
                    agent(job, WRITER, lookup, step_callback=stop).kickoff(item)
                asyncio.run(judged(job))
            return ANSWER

        return agent(job, PLANNER, ask_writer).kickoff(job.question).raw

    played = await bench.one(program)
    assert played.output == ANSWER
    assert [(call.agent, call.trainable) for call in played.calls] == [
        (PLANNER, True),
        (WRITER, False),
        (WRITER, False),
        (JUDGE, False),
        (PLANNER, True),
    ]
    assert len(triplets(played, PLANNER)) == 2


async def test_methods_of_a_flow_that_run_at_once_end_with_it(bench):
    cancelling = Cancelling(bench)

    class Both(Flow):
        @start()
        async def first(self):
            return await model(self.job, WRITER).acall("Say it.")

        @start()
        async def second(self):
            await asyncio.Event().wait()

    async def program(job):
        both = Both()
        object.__setattr__(both, "job", job)
        await cancelling.around(both.kickoff_async())

    played = await bench.one(program)
    ended = {span.name: span.error for span in played.spans if span.kind is not SpanKind.REWARD}
    assert ended == dict.fromkeys(("Both", "first", "second", "chat"), "CancelledError")


async def test_a_crew_that_fails_leaves_its_other_threads_alone(bench):
    """They go on; only what passes every handler ends them too."""
    began, failed, ended = threading.Event(), threading.Event(), threading.Event()

    @tool("lookup")
    def slow(item: str) -> str:
        """Look up what an item costs."""
        began.set()
        assert failed.wait(PATIENCE_S)
        return ANSWER

    def fail(step):
        assert began.wait(PATIENCE_S)
        raise KeyError(step)

    def program(job):
        planner = agent(job, PLANNER, slow)
        writer = agent(job, WRITER, lookup, step_callback=fail, max_retry_limit=0)
        plan = task(job.question, planner, async_execution=True, callback=lambda _: ended.set())
        write = task("Say it.", writer, async_execution=True)
        last = task("Say it.", agent(job, JUDGE))
        with pytest.raises(KeyError):
            Crew(agents=[planner, writer, last.agent], tasks=[write, plan, last]).kickoff()
        failed.set()
        assert ended.wait(PATIENCE_S)

    played = await bench.one(program)
    assert played.error is None
    ran = {span.name: span.status for span in played.spans if span.kind is SpanKind.AGENT}
    assert ran == {PLANNER: "ok", WRITER: "error"}
    assert [call.agent_run_id for call in played.calls if call.agent == PLANNER] == [
        span.id for span in played.spans if span.name == PLANNER
    ] * 2


def test_outside_a_rollout_nothing_is_held_up():
    listener = AglEventListener()
    try:
        with pytest.raises(Stop), _entries.completion.llm_call_context():
            raise Stop
    finally:
        listener.close()


@pytest.mark.parametrize("times", [1, 2])
def test_every_entry_is_put_back(times):
    before = _state()
    listeners = [AglEventListener() for _ in range(times)]
    wrapped = _state()
    assert all(ours is not theirs for ours, theirs in zip(wrapped, before, strict=True))
    for listener in reversed(listeners):
        listener.close()
    assert _state() == before


def _state():
    places = [(owner, name) for owner, name, _ in _entries._ENTRIES]
    places += [(module, "llm_call_context") for module in _entries._modules_that_call()]
    return [inspect.getattr_static(owner, name) for owner, name in places]


@pytest.mark.parametrize("missing", [(Crew, "akickoff"), (_entries.completion, "llm_call_context")])
def test_a_version_without_an_entry_is_refused(monkeypatch, missing):
    owner, name = missing
    monkeypatch.delattr(owner, name)
    before = inspect.getattr_static(Crew, "kickoff")
    with pytest.raises(ConfigError, match=rf"no .*{name}"):
        CrewAIIntegration().attach()
    assert inspect.getattr_static(Crew, "kickoff") is before


def test_an_entry_that_takes_something_else_is_refused(monkeypatch):
    monkeypatch.setattr(Crew, "kickoff", lambda self: None)
    with pytest.raises(ConfigError, match=r"Crew\.kickoff"):
        CrewAIIntegration().attach()
