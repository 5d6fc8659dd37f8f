"""Attach agl to this process: the wire, the frameworks' hooks, an inherited identity."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import Any, Final

from agl_core.interfaces import Integration
from agl_core.tracing.context import adopt
from agl_core.tracing.inheritance import inherited_context
from agl_core.tracing.wire import Wire

_LIBRARIES: Final = ("httpx", "httpx2")


class Attachment:
    """What `attach` returned: the wire and integrations stay until it is detached."""

    def __init__(self, installed: _Installed, integrations: Sequence[Integration]) -> None:
        """Made by `attach`."""
        self._installed = installed
        self._integrations = integrations
        self._attached = True

    def detach(self) -> None:
        """Undo this attachment; the last one restores every function. Repeating it does nothing."""
        if self._attached:
            self._attached = False
            self._installed.release(self._integrations)


class _Installed:
    """What is installed in this process, counted."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders = 0
        self._integrations: list[Integration] = []
        self._held: dict[str, int] = {}
        self._wire = Wire(self._integrations)

    def hold(self, integrations: Sequence[Integration]) -> Attachment:
        with self._lock:
            if not self._holders:
                inherited = inherited_context()
                self._wire.install(_libraries(), _sockets())
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
                self._wire.remove()
                adopt(None)

    def _detach(self, name: str) -> None:
        # The attached object is the first of its name, not necessarily the one released last.
        attached = next(each for each in self._integrations if each.name == name)
        self._integrations.remove(attached)
        attached.detach()


_INSTALLED: Final = _Installed()


def attach(*, integrations: Sequence[Integration] | None = None) -> Attachment:
    """Make agl see this process's model calls, inside rollouts only.

    httpx, httpx2 and websockets are imported if they are installed (about 0.35 s each if nobody has
    imported them yet): a library that is imported after this call could otherwise send unseen.
    Attaching again installs nothing twice; each attachment is detached on its own.

    In a subprocess whose environment has ``AGL_CONTEXT`` (see `child_environment`) all threads
    and tasks belong to the attempt it names. Model calls carry its identity to the gateway; what
    `emit_reward` and its like record has no way back into the parent's recorder and is refused,
    with one warning and a count.

    Args:
        integrations: Frameworks to attach, one object per framework name.

    Raises:
        ConfigError: an HTTP library has an unknown ``send``, or ``AGL_CONTEXT`` is malformed.
    """
    return _INSTALLED.hold(integrations or ())


def _sockets() -> Any | None:
    """Before version 11 there is nothing in it to be watched."""
    if find_spec("websockets") is None:
        return None
    library = import_module("websockets.client")
    return library if hasattr(library, "ClientProtocol") else None


def _libraries() -> list[Any]:
    return [import_module(name) for name in _LIBRARIES if find_spec(name) is not None]
