"""The SDK's own tracing: other processors, disabled, exported, replaced."""

import logging

import agents
import pytest
from agents import RunConfig, Runner, TracingProcessor, custom_span, function_tool
from agents.tracing import TraceProvider, get_trace_provider, set_trace_provider
from agents.tracing.processors import default_exporter, default_processor
from agents.tracing.provider import DefaultTraceProvider
from agl_openai_agents import AglTracingProcessor, _checks
from agl_openai_agents._integration import OpenAIAgentsIntegration
from agl_testing._captured import check_identity
from agl_testing.bench import Bench
from agl_testing.fake_openai import FakeOpenAI
from agl_testing.scenario import ANSWER, PLANNER, TOOL_RESULT, WRITER, Job, reply

from agl_core import semconv
from agl_core.config import RunConfig as AglConfig
from agl_core.errors import CaptureError, ConfigError
from agl_core.tracing import agent_scope, attach, current_scope, trace
from agl_core.types import SpanKind


class Own(TracingProcessor):
    """A processor of the user's."""

    def __init__(self, error=None):
        self.told = []
        self._error = error

    def on_trace_start(self, trace):
        self.told.append(trace.name)

    def on_trace_end(self, trace):
        pass

    def on_span_start(self, span):
        if self._error is not None:
            raise self._error

    def on_span_end(self, span):
        self.told.append(span.span_data.type)

    def shutdown(self):
        pass

    def force_flush(self):
        pass


@pytest.fixture
def provider():
    """A trace provider of this test alone."""
    before = get_trace_provider()
    fresh = DefaultTraceProvider()
    set_trace_provider(fresh)
    yield fresh
    set_trace_provider(before)


@pytest.fixture
async def watched(provider):
    """A bench, attached while `provider` is current."""
    async with Bench.open(integrations=[OpenAIAgentsIntegration()]) as bench:
        yield bench


def writing(agent, *, config=None, before=None):
    async def program(job):
        if before is not None:
            before()
        result = await Runner.run(agent(job, WRITER), job.question, run_config=config)
        return result.final_output

    return program


def calls_of(played):
    if played.error is not None:
        raise played.error
    check_identity(played)
    return [call.agent for call in played.calls]


async def test_a_users_scope_outlives_the_sdks_span_around_it(watched):
    async def program(job):
        del job
        with agents.trace("work"):
            span = agents.agent_span(WRITER)
            span.start(mark_as_current=True)
            with agent_scope("user") as users:
                assert users.parent.agent == WRITER
                span.finish(reset_current=True)
                assert current_scope() is users
            assert current_scope() is None

    played = await watched.one(program)
    assert played.error is None


async def test_an_error_of_a_span_without_a_text_is_an_error(watched):
    async def program(job):
        del job
        with agents.trace("work"), agents.function_span("lookup") as span:
            span.set_error({"message": "", "data": None})

    played = await watched.one(program)
    assert played.error is None
    (tool,) = (span for span in played.spans if span.kind is SpanKind.TOOL)
    assert (tool.status, tool.error) == ("error", "")


async def test_processors_that_are_there_stay_and_are_told_everything(provider, agent):
    own, later = Own(), Own()
    agents.add_trace_processor(own)
    async with Bench.open() as bench:
        attachment = attach(integrations=[OpenAIAgentsIntegration()])
        agents.add_trace_processor(later)
        assert calls_of(await bench.one(writing(agent))) == [WRITER]
        attachment.detach()
    assert provider._multi_processor._processors == (own, later)
    assert own.told == later.told == ["Agent workflow", "generation", "turn", "agent", "task"]


@pytest.mark.parametrize("inside", [False, True])
async def test_processors_that_are_set_later_do_not_replace_ours(watched, provider, agent, inside):
    own = Own()

    def set_processors():
        agents.set_trace_processors([own])

    if not inside:
        set_processors()
    played = await watched.one(writing(agent, before=set_processors if inside else None))
    assert calls_of(played) == [WRITER]
    assert "agent" in own.told
    assert [type(each) for each in provider._multi_processor._processors] == [
        Own,
        AglTracingProcessor,
    ]


async def test_a_list_that_was_replaced_where_it_is_kept_comes_back_with_ours(
    watched, provider, agent
):
    """As OpenInference does, with which Langfuse and others watch the SDK."""
    own = Own()
    provider._multi_processor._processors = (own,)
    for _ in range(2):
        assert calls_of(await watched.one(writing(agent))) == [WRITER]
    assert "agent" in own.told
    assert [type(each) for each in provider._multi_processor._processors] == [
        Own,
        AglTracingProcessor,
    ]


async def test_a_list_that_was_replaced_within_a_trace_costs_the_attempt_alone(
    watched, provider, agent
):
    async def program(job):
        with agents.trace("mine"):
            provider._multi_processor._processors = (Own(),)
            return (await Runner.run(agent(job, WRITER), job.question)).final_output

    played = await watched.one(program)
    with pytest.raises(CaptureError, match="instrument the SDK, before the first run"):
        played.adapt(WRITER)
    assert calls_of(await watched.one(writing(agent))) == [WRITER]


async def test_a_processor_that_raises_is_the_users_own_affair(watched, provider, agent):
    agents.set_trace_processors([Own(ValueError("mine"))])
    assert calls_of(await watched.one(writing(agent))) == [WRITER]


def by_config(monkeypatch):
    return RunConfig(tracing_disabled=True)


def by_function(monkeypatch):
    agents.set_tracing_disabled(True)


def by_variable(monkeypatch):
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")


@pytest.mark.parametrize(
    ("disable", "cause"),
    [
        (by_config, "RunConfig(tracing_disabled=True)"),
        (by_function, "set_tracing_disabled(True)"),
        (by_variable, "OPENAI_AGENTS_DISABLE_TRACING"),
    ],
)
async def test_disabled_tracing_is_said_once_with_its_cause(
    watched, agent, monkeypatch, caplog, disable, cause
):
    config = disable(monkeypatch)

    async def program(job):
        for _ in range(2):
            await Runner.run(agent(job, WRITER), job.question, run_config=config)

    played = await watched.one(program)
    if played.error is not None:
        raise played.error
    (warning,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert f"tracing is disabled ({cause})" in warning.getMessage()
    assert [call.agent for call in played.calls] == ["", ""]
    (finding,) = [
        each
        for each in _checks.pitfalls([played.record], AglConfig())
        if each.check == "openai_agents.tracing"
    ]
    assert (finding.severity, finding.figures) == ("error", {"attempts": 1})
    assert cause in finding.measured


async def test_agents_that_are_named_otherwise_need_no_tracing(watched, agent, caplog):
    async def program(job):
        with agent_scope(WRITER):
            await writing(agent, config=RunConfig(tracing_disabled=True))(job)

    assert calls_of(await watched.one(program)) == [WRITER]
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_rollouts_are_not_exported(bench, agent, monkeypatch):
    """A runner sets OPENAI_API_KEY, with which the SDK would post to OpenAI."""
    monkeypatch.setenv("OPENAI_API_KEY", "key of the gateway")
    sent = []
    monkeypatch.setattr(default_exporter(), "export", sent.extend)
    default_processor().force_flush()
    sent.clear()
    left = []

    async def program(job):
        left.append(custom_span("left open", parent=agents.trace("shop")))
        left[0].start()
        return await writing(agent)(job)

    assert calls_of(await bench.one(program)) == [WRITER]
    left.pop().finish()
    default_processor().force_flush()
    assert sent == []
    async with FakeOpenAI(reply) as fake:
        job = Job(fake.base_url, "key")
        with trace("a look, no rollout"):
            assert await writing(agent)(job) == ANSWER
        assert await writing(agent)(job) == ANSWER
    default_processor().force_flush()
    assert [each.export().get("workflow_name") for each in sent].count("Agent workflow") == 2


async def test_after_detaching_the_exporter_is_as_it_was(agent):
    before = dict(vars(default_processor()))
    attachment = attach(integrations=[OpenAIAgentsIntegration()])
    assert vars(default_processor()).keys() > before.keys()
    attachment.detach()
    assert vars(default_processor()) == before


def test_a_provider_of_another_form_is_refused(provider):
    del provider._multi_processor._processors
    with pytest.raises(ConfigError, match=r"openai-agents \d.*keeps its processors"):
        OpenAIAgentsIntegration().attach()
    assert "set_processors" not in vars(provider)
    assert "on_span_end" not in vars(default_processor())


@pytest.mark.parametrize("method", ["on_trace_start", "on_span_start", "on_span_end"])
def test_an_exporter_of_another_form_is_refused(provider, monkeypatch, method):
    def renamed(self, span, context):
        """Takes more than is known."""

    processor = default_processor()
    monkeypatch.setattr(type(processor), method, renamed)
    with pytest.raises(ConfigError, match=rf"openai-agents \d.*Processor\.{method} is not"):
        OpenAIAgentsIntegration().attach()
    assert method not in vars(processor)
    assert "set_processors" not in vars(provider)


async def test_a_provider_that_is_replaced_is_an_error_once_then_watched(watched, agent):
    replacement = DefaultTraceProvider()

    def replace():
        set_trace_provider(replacement)

    played = await watched.one(writing(agent, before=replace))
    assert [span.name for span in played.spans if span.status == "error"] == [
        semconv.AGL_CAPTURE_ERROR
    ]
    assert calls_of(await watched.one(writing(agent))) == [WRITER]


class Theirs(TraceProvider):
    """A provider of somebody else's, which keeps its processors where nobody looks."""

    def __init__(self):
        self._inner = DefaultTraceProvider()

    def register_processor(self, processor):
        self._inner.register_processor(processor)

    def set_processors(self, processors):
        self._inner.set_processors(processors)

    def get_current_trace(self):
        return self._inner.get_current_trace()

    def get_current_span(self):
        return self._inner.get_current_span()

    def set_disabled(self, disabled):
        self._inner.set_disabled(disabled)

    def time_iso(self):
        return self._inner.time_iso()

    def gen_trace_id(self):
        return self._inner.gen_trace_id()

    def gen_span_id(self):
        return self._inner.gen_span_id()

    def gen_group_id(self):
        return self._inner.gen_group_id()

    def create_trace(self, *args, **kwargs):
        return self._inner.create_trace(*args, **kwargs)

    def create_span(self, *args, **kwargs):
        return self._inner.create_span(*args, **kwargs)


async def test_a_provider_of_somebody_elses_is_served_and_left_with_a_silent_processor(agent):
    before = get_trace_provider()
    theirs = Theirs()
    set_trace_provider(theirs)
    try:
        async with Bench.open() as bench:
            attachment = attach(integrations=[OpenAIAgentsIntegration()])
            assert calls_of(await bench.one(writing(agent))) == [WRITER]
            attachment.detach()
            detached = attach(integrations=[])
            played = await bench.one(writing(agent))
            assert [call.agent for call in played.calls] == [""]
            detached.detach()
        assert "set_processors" not in vars(theirs)
    finally:
        set_trace_provider(before)


async def test_processors_given_many_times_record_once(watched, provider, agent):
    agents.add_trace_processor(AglTracingProcessor())
    agents.add_trace_processor(AglTracingProcessor())
    played = await watched.one(writing(agent))
    assert calls_of(played) == [WRITER]
    assert [span.kind.value for span in played.spans] == ["agent", "llm", "reward"]


async def test_the_processor_alone_is_enough_without_the_integration(provider, agent):
    agents.add_trace_processor(AglTracingProcessor())
    async with Bench.open() as bench:
        attachment = attach(integrations=[])
        assert calls_of(await bench.one(writing(agent))) == [WRITER]
        attachment.detach()


async def test_outside_a_rollout_the_processor_keeps_nothing(provider, agent, caplog):
    processor = AglTracingProcessor()
    agents.add_trace_processor(processor)
    async with FakeOpenAI(reply) as fake:
        assert await writing(agent)(Job(fake.base_url, "key")) == ANSWER
    assert vars(processor) == {"_stopped": False}
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_opentelemetry_of_the_users_goes_on_undisturbed(bench, agent):
    """Spans of the user's own tracer keep their parents, in tools too, and hold nothing of ours."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    otel = sdk.TracerProvider()
    otel.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = otel.get_tracer("shop")

    async def program(job):
        @function_tool
        def lookup(item: str) -> str:
            """Look up what an item costs."""
            with tracer.start_as_current_span("inner"):
                return TOOL_RESULT

        with tracer.start_as_current_span("outer"):
            result = await Runner.run(agent(job, PLANNER, tools=[lookup]), job.question)
        return result.final_output

    played = await bench.one(program)
    assert calls_of(played) == [PLANNER, PLANNER]
    inner, outer = exporter.get_finished_spans()
    assert (inner.name, inner.parent.span_id) == ("inner", outer.context.span_id)
    assert not inner.attributes
    assert not outer.attributes
    assert [span.name for span in played.spans if span.kind is SpanKind.TOOL] == ["lookup"]
