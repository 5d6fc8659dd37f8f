"""Zero-code mode: the listener is installed while agl is attached."""

from __future__ import annotations

from agl_testing.toy_framework import Agent

from agl_core.types import Scope
from agl_template._handler import FRAMEWORK, AglTemplateListener


class TemplateIntegration:
    """The integration of the framework, attached to the process."""

    name = FRAMEWORK

    def __init__(self) -> None:
        self._listener: AglTemplateListener | None = None

    def attach(self) -> None:
        """Install the framework's native hook. List every place it touches in README.md."""
        if self._listener is None:
            self._listener = AglTemplateListener()
            Agent.listeners.append(self._listener)

    def detach(self) -> None:
        """Restore the state before `attach`."""
        if self._listener is not None:
            Agent.listeners.remove(self._listener)
            self._listener = None

    def identity(self) -> Scope | None:
        """Return None: the listener's scopes are current in every task that sends a request.

        In other frameworks, read the framework's own context; agl calls this in the task that
        sends.
        """
        return None
