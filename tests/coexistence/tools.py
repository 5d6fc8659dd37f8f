"""LangSmith, AgentOps and Langfuse, set up as their documentation says for a framework."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def makes_spans(framework: str) -> bool:
    """Whether a framework makes OpenTelemetry spans, which these tools collect.

    No tool has lines of its own for one that does.
    """
    return not any(hasattr(tool, f"watch_{framework}") for tool in TOOLS.values())


def install(tools: Sequence[Tool], framework: str, programs: Any) -> None:
    """Set tools up, all in one program.

    Args:
        tools: Whatever the user has.
        framework: The one to watch.
        programs: The module of the user's program, for the lines that a user adds to it.
    """
    for tool in tools:
        tool.start(framework)
    if makes_spans(framework):
        _have_spans_made(framework, programs, tools[0].url)
    else:
        for tool in tools:
            tool.watch(framework, programs)


class Tool(ABC):
    """A tool that the user has already, sending to `url`."""

    def __init__(self, url: str, *, alone: bool) -> None:
        """Make a tool.

        Args:
            url: Where its spans go.
            alone: Whether it is the only one of these; with others, none may take their place.
        """
        self.url = url
        self.alone = alone

    @abstractmethod
    def start(self, framework: str) -> None:
        """What a program does once, at its beginning."""

    def watch(self, framework: str, programs: Any) -> None:
        """Add the lines that watch a framework which makes no spans of its own."""
        getattr(self, f"watch_{framework}")(programs)

    def flush(self) -> None:
        """Send what was recorded."""
        provider: Any = trace.get_tracer_provider()
        if hasattr(provider, "force_flush"):
            provider.force_flush()


class LangSmith(Tool):
    """Callbacks of LangChain, a wrapper around the client, a tracing processor, OpenTelemetry."""

    def start(self, framework: str) -> None:
        os.environ.update(
            LANGSMITH_TRACING="true", LANGSMITH_API_KEY="key", LANGSMITH_ENDPOINT=self.url
        )
        from langsmith import Client
        from langsmith.run_trees import get_cached_client
        from langsmith.utils import get_env_var

        get_env_var.cache_clear()
        self.client: Client = get_cached_client()
        if makes_spans(framework) or framework == "crewai":
            # Before anybody else has set a provider, else it does nothing.
            from langsmith.integrations.otel import configure

            assert configure(api_key="key", project_name="project")

    def watch_langchain(self, programs: Any) -> None:
        """The environment is enough."""

    def watch_openai(self, programs: Any) -> None:
        from langsmith.wrappers import wrap_openai

        for name in ("_client", "_async_client"):
            made = getattr(programs, name)
            setattr(programs, name, lambda job, made=made: wrap_openai(made(job)))

    def watch_openai_agents(self, programs: Any) -> None:
        from agents import add_trace_processor, set_trace_processors
        from langsmith.integrations.openai_agents_sdk import OpenAIAgentsTracingProcessor

        processor = OpenAIAgentsTracingProcessor(client=self.client)
        if self.alone:
            set_trace_processors([processor])
        else:
            add_trace_processor(processor)

    def watch_crewai(self, programs: Any) -> None:
        _instrument_crewai()

    def flush(self) -> None:
        super().flush()
        self.client.flush()


class AgentOps(Tool):
    """Wraps what it finds imported.

    Its own exporter cannot send with version 1.45 of OpenTelemetry's, so its spans go by that.
    """

    def start(self, framework: str) -> None:
        os.environ["AGENTOPS_LOGGING_TO_FILE"] = "false"
        import agentops

        agentops.init(
            api_key="00000000-0000-4000-8000-000000000000",
            endpoint=self.url,
            app_url=self.url,
            exporter_endpoint=f"{self.url}/v1/traces",
            # Its wrapper of LangGraph takes no nodes that are Runnables, as `create_agent` makes.
            instrument_llm_calls=framework != "langchain",
            env_data_opt_out=True,
            log_session_replay_url=False,
            log_level="CRITICAL",
        )
        provider: Any = trace.get_tracer_provider()
        exporter = OTLPSpanExporter(f"{self.url}/v1/traces")
        provider.add_span_processor(BatchSpanProcessor(exporter))

    def _wraps_what_is_imported(self, programs: Any) -> None:
        """`start` did it."""

    watch_openai = watch_openai_agents = watch_crewai = _wraps_what_is_imported

    def watch_langchain(self, programs: Any) -> None:
        from agentops.integration.callbacks.langchain import LangchainCallbackHandler

        _add_handler(programs, LangchainCallbackHandler(auto_session=False))


class Langfuse(Tool):
    """Collects OpenTelemetry; has a handler for LangChain and a wrapper of the client."""

    def start(self, framework: str) -> None:
        from langfuse import Langfuse as Client

        self.client = Client(public_key="pk-lf-1", secret_key="sk-lf-1", base_url=self.url)

    def watch_langchain(self, programs: Any) -> None:
        from langfuse.langchain import CallbackHandler

        _add_handler(programs, CallbackHandler())

    def watch_openai(self, programs: Any) -> None:
        importlib.import_module("langfuse.openai")

    def watch_openai_agents(self, programs: Any) -> None:
        from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

        OpenAIAgentsInstrumentor().instrument(exclusive_processor=self.alone)

    def watch_crewai(self, programs: Any) -> None:
        _instrument_crewai()

    def flush(self) -> None:
        self.client.flush()


TOOLS: Final[dict[str, type[Tool]]] = {
    "langsmith": LangSmith,
    "agentops": AgentOps,
    "langfuse": Langfuse,
}


def _add_handler(programs: Any, handler: Any) -> None:
    """``graph.invoke(..., config={"callbacks": [handler]})``."""
    made = programs._shop
    programs._shop = lambda models: made(models).with_config(callbacks=[handler])


def _have_spans_made(framework: str, programs: Any, url: str) -> None:
    if framework == "agent_framework":
        from agent_framework.observability import enable_instrumentation

        enable_instrumentation()
    elif framework == "agentscope1":
        import agentscope

        # To where nothing is kept: what a tool collects is then the tool's own doing.
        agentscope.init(tracing_url=f"{url}/studio")
    elif framework == "agentscope2":
        from agentscope.middleware import TracingMiddleware

        made = programs.agent
        programs.agent = lambda model, name, *tools, **fields: made(
            model, name, *tools, middlewares=[TracingMiddleware()], **fields
        )


def _instrument_crewai() -> None:
    """OpenInference's two instrumentations, which both document for CrewAI."""
    from openinference.instrumentation.crewai import CrewAIInstrumentor
    from openinference.instrumentation.openai import OpenAIInstrumentor

    CrewAIInstrumentor().instrument()
    OpenAIInstrumentor().instrument()
