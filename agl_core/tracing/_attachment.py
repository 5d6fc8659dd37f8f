"""Attaching agl to a process: HTTP libraries, frameworks' hooks, identity from a parent process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from threading import Event, Lock
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from agl_core import semconv
from agl_core.clocks import wall
from agl_core.errors import ConfigError
from agl_core.interfaces import Integration
from agl_core.text import url_quoted
from agl_core.tracing._context import Aliases, AttemptContext, adopt, current
from agl_core.tracing._recorder import Recorder
from agl_core.tracing._scopes import current_scope
from agl_core.tracing._wire import Wire
from agl_core.types import LLM, Attempt, Resources, Rollout, Scope, Span, SpanKind, Task
from agl_core.types.rollout import CAPTURE, PROMPT_BUDGETS, THINKING_TAGS

_log = logging.getLogger(__name__)
_LIBRARIES: Final = ("httpx", "httpx2")


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
    """The attempt's key; it does not depend on the child's ``OPENAI_API_KEY``."""
    model: str = ""
    deadline_at: float = 0.0
    """Unix seconds."""
    settings: dict[str, Any] = {}
    """Settings of the run, as in `Rollout.metadata`."""


def child_environment(*, agent: str | None = None) -> dict[str, str]:
    """Return environment variables that make a subprocess part of this attempt.

    Merge them into the child's environment. A Python child calls `attach`; a program in another
    language is identified by the URL in ``OPENAI_BASE_URL``.

    Args:
        agent: The agent of the child's calls, written into the URL. If None, a Python child that
            attaches has the current scope's agent until it names another; any other program names
            its agents with ``/agent/<name>`` before ``/v1`` or the header ``x-agl-agent``.

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
    """Return the attempt and scope in ``AGL_CONTEXT``; None for both if it is not set.

    Raises:
        ConfigError: the variable was not written by `child_environment`.
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
    """Return a callback that warns once; the recorder's `late` counts every span."""
    warned = Event()

    def refuse(span: Span) -> None:
        # An LLM span is not lost: the gateway records the call under the same identity.
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
    path = f"/r/{url_quoted(context.rollout.id)}/a/{url_quoted(context.attempt.id)}"
    if agent is not None:
        path += f"/agent/{url_quoted(agent)}"
    return f"{parts.scheme}://{parts.netloc}{path}/v1"


class Attachment:
    """The result of `attach`: wrapped libraries and integrations stay until `detach`."""

    def __init__(self, installed: _Installed, integrations: Sequence[Integration]) -> None:
        """Made by `attach`."""
        self._installed = installed
        self._integrations = integrations
        self._attached = True

    def detach(self) -> None:
        """Undo this attachment; the last one restores every function. Idempotent."""
        if self._attached:
            self._attached = False
            self._installed.release(self._integrations)


class _Installed:
    """The wire and integrations of this process, with the number of attachments of each."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders = 0
        self._integrations: list[Integration] = []
        self._held: dict[str, int] = {}
        self.wire = Wire(self._integrations)

    def hold(self, integrations: Sequence[Integration]) -> Attachment:
        with self._lock:
            if not self._holders:
                inherited = inherited_context()
                self.wire.install(_libraries())
                adopt(*inherited)
            self._holders += 1
            held: list[Integration] = []
            try:
                for integration in integrations:
                    if not self._held.get(integration.name):
                        integration.attach()
                        self._integrations.append(integration)
                    self._held[integration.name] = self._held.get(integration.name, 0) + 1
                    held.append(integration)
            except BaseException:
                self._release(held)
                raise
        return Attachment(self, held)

    def release(self, integrations: Sequence[Integration]) -> None:
        with self._lock:
            self._release(integrations)

    def _release(self, integrations: Sequence[Integration]) -> None:
        self._holders -= 1
        try:
            for integration in reversed(integrations):
                self._held[integration.name] -= 1
                if not self._held[integration.name]:
                    self._detach(integration.name)
        finally:
            if not self._holders:
                self.wire.remove()
                adopt(None)

    def _detach(self, name: str) -> None:
        # The attached object is the first of its name, not necessarily the one released last.
        attached = next(each for each in self._integrations if each.name == name)
        self._integrations.remove(attached)
        attached.detach()


_INSTALLED: Final = _Installed()


def attach(*, integrations: Sequence[Integration] | None = None) -> Attachment:
    """Record this process's model calls, inside rollouts only.

    httpx and httpx2 are imported if they are installed (about 0.35 s each if they are not imported
    yet); otherwise requests of a library that is imported later would go unrecorded. Requests over
    other HTTP libraries are checked by an integration.
    Repeated calls install nothing twice; each attachment is detached separately.

    In a subprocess whose environment has ``AGL_CONTEXT`` (see `child_environment`), all threads
    and tasks belong to the attempt that it names. Model calls have the attempt's identity. Records
    of `emit_reward` and similar functions cannot reach the parent's recorder: they are refused,
    with one warning and a count.

    Args:
        integrations: Integrations to attach, one object per name.

    Raises:
        ConfigError: the ``send`` of an HTTP library has an unexpected signature, or
            ``AGL_CONTEXT`` is malformed.
    """
    return _INSTALLED.hold(integrations or ())


def request_scope(context: AttemptContext) -> Scope | None:
    """Return the scope of a request that is sent now, as attached integrations report it."""
    return _INSTALLED.wire.scope(context)


def check_request(posted: Callable[[], str | None], library: str) -> None:
    """Decide what becomes of a request that cannot get identity headers, before it is sent.

    A model request to another address than the gateway's is counted. Requests to the gateway and
    requests that ask no model pass.

    Args:
        posted: Returns the URL of a POST, None for other requests.
        library: The HTTP library that sends it, for the error.

    Raises:
        CaptureError: the request must not be sent: its agent is trained, or
            ``capture.elsewhere = "refuse"``.
    """
    _INSTALLED.wire.check(posted, library)


def _libraries() -> list[Any]:
    return [import_module(name) for name in _LIBRARIES if find_spec(name) is not None]
