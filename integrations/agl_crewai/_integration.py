"""Zero-code mode: one listener for all crews, flows and agents while attached."""

from __future__ import annotations

from agl_core.types import Scope
from agl_crewai._frames import speaker
from agl_crewai._listener import AglEventListener
from agl_crewai._names import FRAMEWORK
from agl_crewai._telemetry import NoTelemetry


class CrewAIIntegration:
    """Records all crews, flows and agents of CrewAI in this process."""

    name = FRAMEWORK

    def __init__(self) -> None:
        self._listener: AglEventListener | None = None
        self._telemetry = NoTelemetry()

    def attach(self) -> None:
        """Listen to CrewAI's event bus, and switch CrewAI's telemetry off.

        Raises:
            ConfigError: the event bus or an entry point differs from that of supported versions.
        """
        if self._listener is None:
            self._listener = AglEventListener()
            self._telemetry.install()

    def detach(self) -> None:
        """Stop listening and restore the environment."""
        if self._listener is not None:
            self._listener.close()
        self._listener = None
        self._telemetry.remove()

    def identity(self) -> Scope | None:
        """Return None: each span's scope is current in its own context.

        Make a flow method that is about to send a request an agent.
        """
        speaker()
