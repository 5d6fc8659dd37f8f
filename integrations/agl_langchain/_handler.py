"""A callback handler that records LangChain's runs as spans and scopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from agl_core import semconv
from agl_core.tracing import active, guarded, tool_attributes
from agl_langchain._runs import FRAMEWORK, TABLES, Run, RunTable, Start
from agl_langchain._tools import asked_for, handed_to, refused, result_of, unparsed


class AglCallbackHandler(BaseCallbackHandler):
    """Records the agents, calls and tools of a LangChain or LangGraph program.

    Each model request gets the name of its agent. Outside a rollout the handler does nothing, so
    production code may keep it. One instance serves any number of rollouts, threads and tasks; a
    run that reaches several instances is recorded once.
    """

    run_inline = True
    """Run callbacks in the task that sends the request, so that its call scope is current there."""
    raise_error = False

    @guarded(FRAMEWORK)
    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        del inputs, tags
        start = Start(run_id, parent_run_id, _name(serialized, kwargs, "chain"), metadata, {})
        self._begin(RunTable.open_chain, start)

    @guarded(FRAMEWORK)
    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        del kwargs
        table = TABLES.holding(run_id)
        if table is None:
            return
        if table.asked:
            table.record_unreached(run_id, refused(outputs, table.asked))
        table.close(run_id)

    @guarded(FRAMEWORK)
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        del kwargs
        self._end(run_id, error=error)

    @guarded(FRAMEWORK)
    def on_retriever_start(
        self,
        serialized: dict[str, Any] | None,
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        del query, tags
        start = Start(run_id, parent_run_id, _name(serialized, kwargs, "retriever"), metadata, {})
        self._begin(RunTable.open_chain, start)

    @guarded(FRAMEWORK)
    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        del documents, kwargs
        self._end(run_id)

    @guarded(FRAMEWORK)
    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        del kwargs
        self._end(run_id, error=error)

    @guarded(FRAMEWORK)
    def on_tool_start(  # noqa: PLR0913  LangChain's signature
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        del tags
        name = _name(serialized, kwargs, "tool")
        arguments = input_str if inputs is None else inputs
        attributes = tool_attributes(name, arguments, call_id=kwargs.get("tool_call_id"))
        self._begin(RunTable.open_tool, Start(run_id, parent_run_id, name, metadata, attributes))

    @guarded(FRAMEWORK)
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        del kwargs
        table = TABLES.holding(run_id)
        if table is None:
            return
        for target in handed_to(output):
            table.hand_over(run_id, target)
        table.close(run_id, attributes={semconv.GEN_AI_TOOL_RESULT: result_of(output)})

    @guarded(FRAMEWORK)
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        del kwargs
        self._end(run_id, error=error)

    @guarded(FRAMEWORK)
    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[Any]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        del messages, tags
        self._begin_call(
            Start(run_id, parent_run_id, _name(serialized, kwargs, "model"), metadata, {}), kwargs
        )

    @guarded(FRAMEWORK)
    def on_llm_start(
        self,
        serialized: dict[str, Any] | None,
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        del prompts, tags
        self._begin_call(
            Start(run_id, parent_run_id, _name(serialized, kwargs, "model"), metadata, {}), kwargs
        )

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Mark the call as answered; runs per token, so it is only a look-up and a flag."""
        del token, kwargs
        table = TABLES.holding(run_id)
        if table is not None:
            table.answering(run_id)

    @guarded(FRAMEWORK)
    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        del kwargs
        table = TABLES.holding(run_id)
        if table is None:
            return
        choice = next((each for choices in response.generations for each in choices), None)
        message = getattr(choice, "message", None)
        table.asked.update(asked_for(message))
        if getattr(message, "invalid_tool_calls", None):
            table.record_unreached(run_id, unparsed(message))
        table.close(run_id, attributes=_answer(response, message))

    @guarded(FRAMEWORK)
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        del kwargs
        self._end(run_id, error=error)

    def _begin_call(self, start: Start, extra: Mapping[str, Any]) -> None:
        if extra.get("batch_size", 1) > 1:
            # `generate` with several prompts starts all of them before it sends the first, so no
            # scope can distinguish them; the HTTP layer records each request instead.
            return
        parameters: dict[str, Any] = extra.get("invocation_params") or {}
        if model := parameters.get("model") or parameters.get("model_name"):
            start.attributes[semconv.GEN_AI_REQUEST_MODEL] = model
        self._begin(RunTable.open_call, start)

    def _begin(self, open_run: Callable[[RunTable, Start], Run], start: Start) -> None:
        context = active()
        if context is None:
            return
        table = TABLES.of(context)
        if start.run_id not in table:
            open_run(table, start)

    def _end(
        self,
        run_id: UUID,
        *,
        error: BaseException | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        table = TABLES.holding(run_id)
        if table is not None:
            table.close(run_id, error=error, attributes=attributes)


def _name(serialized: Mapping[str, Any] | None, extra: Mapping[str, Any], default: str) -> str:
    """Return the run's name: the one given at the call, else the class name, else `default`."""
    name = extra.get("name") or (serialized or {}).get("name")
    return name if isinstance(name, str) else default


def _answer(response: Any, message: Any) -> dict[str, Any]:
    """Return the id and usage of an answer, if known; each choice states the usage of all."""
    found: dict[str, Any] = {}
    output: dict[str, Any] = getattr(response, "llm_output", None) or {}
    if response_id := output.get("id"):
        found[semconv.GEN_AI_RESPONSE_ID] = response_id
    if usage := getattr(message, "usage_metadata", None):
        found[semconv.GEN_AI_USAGE_INPUT_TOKENS] = usage["input_tokens"]
        found[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] = usage["output_tokens"]
    return found
