"""Carry an attempt's identity into a subprocess, and take it up there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agl_core import semconv
from agl_core.clocks import wall
from agl_core.errors import ConfigError
from agl_core.text import url_quoted
from agl_core.tracing.aliases import Aliases
from agl_core.tracing.context import AttemptContext, current, current_scope
from agl_core.tracing.recorder import Recorder
from agl_core.types import LLM, Attempt, Resources, Rollout, Scope, Span, SpanKind, Task
from agl_core.types.rollout import CAPTURE, PROMPT_BUDGETS, THINKING_TAGS

_log = logging.getLogger(__name__)


class _Identity(msgspec.Struct, kw_only=True):
    """The JSON in ``AGL_CONTEXT``."""

    rollout: str
    attempt: str
    origins: list[str]
    agent: str | None = None
    agent_run: str | None = None
    trainable: bool = True
    aliases: dict[str, str] = {}
    api_key: str = ""
    """Opens this attempt; what the child does to ``OPENAI_API_KEY`` does not change it."""
    model: str = ""
    deadline_at: float = 0.0
    """Unix seconds."""
    settings: dict[str, Any] = {}
    """Of the run, as `Rollout.metadata` has them."""


def child_environment(*, agent: str | None = None) -> dict[str, str]:
    """Environment variables that carry this attempt into a subprocess.

    Merge them into the child's environment. A Python child calls `attach`; a program in another
    language is identified by the URL in ``OPENAI_BASE_URL``.

    Args:
        agent: Who speaks in the child, written into the URL. When None, the current scope's agent
            speaks in a Python child that attaches, until it names another; any other program names
            its agents itself, with ``/agent/<name>`` before ``/v1`` or the header ``x-agl-agent``.

    Raises:
        ConfigError: outside a rollout.
    """
    context = current()
    scope = current_scope()
    speaker = agent or (scope.agent if scope is not None else None)
    same = scope is not None and speaker == scope.agent
    identity = _Identity(
        rollout=context.rollout.id,
        attempt=context.attempt.id,
        origins=sorted(context.origins),
        agent=speaker,
        agent_run=scope.agent_run_id if scope is not None and same else None,
        trainable=scope is None or scope.trainable,
        aliases=context.aliases.names(),
        api_key=context.llm.api_key,
        model=context.llm.model,
        deadline_at=wall() + context.seconds_left(),
        settings={
            name: value
            for name, value in context.rollout.metadata.items()
            if name in (CAPTURE, THINKING_TAGS, PROMPT_BUDGETS)
        },
    )
    return {
        semconv.ENV_CONTEXT: msgspec.json.encode(identity).decode(),
        "OPENAI_BASE_URL": _identity_url(context, agent),
        "OPENAI_API_KEY": context.llm.api_key,
    }


def inherited_context() -> tuple[AttemptContext | None, Scope | None]:
    """The attempt and scope that ``AGL_CONTEXT`` names; nothing when it is not set.

    Raises:
        ConfigError: the variable does not hold what `child_environment` wrote.
    """
    text = os.environ.get(semconv.ENV_CONTEXT)
    if not text:
        return None, None
    try:
        identity = msgspec.json.decode(text, type=_Identity)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{semconv.ENV_CONTEXT} does not name an attempt ({error}): take it unchanged from "
            f"child_environment() in the parent, or unset it"
        ) from error
    scope = None
    if identity.agent is not None or not identity.trainable:
        scope = Scope(
            kind="operation" if identity.agent is None else "agent",
            span_id="",
            agent=identity.agent,
            agent_run_id=identity.agent_run,
            trainable=identity.trainable,
        )
    return _inherit(identity), scope


def _inherit(identity: _Identity) -> AttemptContext:
    rollout = Rollout(id=identity.rollout, task=Task(id=""), run_id="", metadata=identity.settings)
    attempt = Attempt(
        id=identity.attempt,
        rollout_id=identity.rollout,
        fence=1,
        worker=f"pid-{os.getpid()}",
        deadline_at=identity.deadline_at,
    )
    recorder = Recorder(identity.rollout, identity.attempt, on_late=_refusal())
    recorder.drain()
    return AttemptContext(
        rollout=rollout,
        attempt=attempt,
        llm=LLM(
            model=identity.model,
            base_url=os.environ.get("OPENAI_BASE_URL", ""),
            api_key=identity.api_key or os.environ.get("OPENAI_API_KEY", ""),
        ),
        resources=Resources(),
        recorder=recorder,
        origins=frozenset(identity.origins),
        deadline=attempt.monotonic_deadline(rollout.limits),
        aliases=Aliases(identity.aliases),
    )


def _refusal() -> Callable[[Span], None]:
    """A callback that warns once; the recorder's `late` counts every span."""
    warned = Event()

    def refuse(span: Span) -> None:
        # An LLM span is no loss: the gateway records the call itself under the same identity.
        if span.kind is SpanKind.LLM or warned.is_set():
            return
        warned.set()
        _log.warning(
            "A %s span was emitted in a subprocess of a rollout and is lost: only model calls "
            "reach the parent from here. Return the value to the parent and emit it there",
            span.kind.value,
        )

    return refuse


def _identity_url(context: AttemptContext, agent: str | None) -> str:
    parts = urlsplit(context.llm.base_url)
    path = f"/r/{_quoted(context.rollout.id)}/a/{_quoted(context.attempt.id)}"
    if agent is not None:
        path += f"/agent/{_quoted(agent)}"
    return f"{parts.scheme}://{parts.netloc}{path}/v1"


def _quoted(text: str) -> str:
    return url_quoted(text)
