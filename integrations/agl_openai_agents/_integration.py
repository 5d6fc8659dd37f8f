"""Zero-code mode: adds the processor to the SDK's tracing while the integration is attached."""

from __future__ import annotations

import logging
import os
from typing import Any, Final

from agents.tracing import get_current_span, get_trace_provider

from agl_core import semconv
from agl_core.tracing import AttemptContext, active, guarded, scope_around
from agl_core.types import Scope
from agl_openai_agents._processor import AglTracingProcessor
from agl_openai_agents._provider import CloudExport, ProviderHook
from agl_openai_agents._shapes import FRAMEWORK, UNTRACED
from agl_openai_agents._spans import TABLES, SpanTable

_log = logging.getLogger(__name__)

_NO_OP: Final = "no-op"
"""Id of the spans and traces that the SDK makes when tracing is disabled."""
_VARIABLE: Final = "OPENAI_AGENTS_DISABLE_TRACING"


class OpenAIAgentsIntegration:
    """Records all agents of the OpenAI Agents SDK in this process."""

    name = FRAMEWORK

    def __init__(self) -> None:
        self._hook: ProviderHook | None = None
        self._export: CloudExport | None = None

    def attach(self) -> None:
        """Add our processor to the existing ones, and do not export rollouts to OpenAI.

        Raises:
            ConfigError: the SDK's tracing differs from that of the supported versions.
        """
        if self._hook is not None:
            return
        export = CloudExport()
        hook = ProviderHook(get_trace_provider(), AglTracingProcessor())
        export.install()
        hook.install()
        self._export, self._hook = export, hook

    def detach(self) -> None:
        """Remove our processor; the user's processors are not changed."""
        if self._hook is not None and self._export is not None:
            self._hook.remove()
            self._export.remove()
            self._hook = self._export = None

    def identity(self) -> Scope | None:
        """Return the scope of the SDK's current span; None if a scope of agl-core is inside it."""
        context = active()
        if context is None or self._hook is None:
            return None
        table = TABLES.of(context)
        opened = scope_around(FRAMEWORK)
        scope = table(opened)
        span = get_current_span()
        if span is not None and span.span_id not in table:
            self._unseen(span, context, table, named=scope is not None and scope.agent is not None)
        return None if scope is opened else scope

    @guarded(FRAMEWORK)
    def _unseen(self, span: Any, context: AttemptContext, table: SpanTable, *, named: bool) -> None:
        """Record, once in an attempt, that the current span did not reach the processor."""
        if table.warned:
            return
        if span.span_id == _NO_OP:
            if not named:
                table.warned = True
                _warn_untraced(context)
        elif span.span_data.type in ("generation", "response"):
            table.warned = True
            self._rejoin(context)

    def _rejoin(self, context: AttemptContext) -> None:
        """Add the processor again: the provider or its list of processors was replaced."""
        provider = get_trace_provider()
        if self._hook is not None and self._hook.provider is not provider:
            self._hook.remove()
            self._hook = ProviderHook(provider, AglTracingProcessor())
            self._hook.install()
        elif self._hook is not None:
            self._hook.stay()
        context.recorder.capture_error(
            "OpenAI Agents: this model call is in a span that agl's processor did not get, so "
            "its agent is unknown. The trace provider or its list of processors was replaced while "
            "the program ran: call agents.set_trace_provider, and instrument the SDK, before the "
            "first run, or never",
            framework=FRAMEWORK,
        )


def _warn_untraced(context: AttemptContext) -> None:
    cause, fix = _cause()
    message = (
        f"OpenAI Agents: tracing is disabled ({cause}), so this rollout shows no agents, tools or "
        f"handoffs, and no agent of it can be trained. {fix}. Rollouts export nothing to OpenAI, "
        f"with or without a key; or name each agent with agl.agent_scope"
    )
    _log.warning("%s", message)
    context.recorder.point(
        UNTRACED,
        attributes={semconv.AGL_FRAMEWORK: FRAMEWORK},
        status="error",
        error=message,
    )


def _cause() -> tuple[str, str]:
    """Return the setting that disabled tracing, and its fix."""
    if get_trace_provider().create_trace("agl").trace_id != _NO_OP:
        return "RunConfig(tracing_disabled=True)", "Leave tracing_disabled out of the RunConfig"
    if os.environ.get(_VARIABLE, "").lower() in ("1", "true"):
        return _VARIABLE, f"Unset {_VARIABLE}"
    return "set_tracing_disabled(True)", "Take out agents.set_tracing_disabled(True)"
