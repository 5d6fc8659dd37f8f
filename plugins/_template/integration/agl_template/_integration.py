"""Zero-code mode: the listener is installed for as long as agl is attached."""

from __future__ import annotations

from agl_testing.toy_framework import Agent

from agl_core.types import Scope
from agl_template._handler import FRAMEWORK, AglTemplateListener


class TemplateIntegration:
    """The framework, attached to the process."""

    name = FRAMEWORK

    def __init__(self) -> None:
        self._listener: AglTemplateListener | None = None

    def attach(self) -> None:
        """Install the framework's native hook. List every place it touches in README.md."""
        if self._listener is None:
            self._listener = AglTemplateListener()
            Agent.listeners.append(self._listener)

    def detach(self) -> None:
        """Restore what was there."""
        if self._listener is not None:
            Agent.listeners.remove(self._listener)
            self._listener = None

    def identity(self) -> Scope | None:
        """None: the listener's scopes are current wherever this framework sends.

        Otherwise read the framework's own context here; it is asked in the task that sends.
        """
        return None
