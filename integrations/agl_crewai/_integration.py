"""Zero-code mode: one listener for every crew, flow and agent while agl is attached."""

from __future__ import annotations

from agl_core.types import Scope
from agl_crewai._frames import speaker
from agl_crewai._listener import AglEventListener
from agl_crewai._names import FRAMEWORK
from agl_crewai._telemetry import NoTelemetry


class CrewAIIntegration:
    """CrewAI, attached to the process."""

    name = FRAMEWORK

    def __init__(self) -> None:
        self._listener: AglEventListener | None = None
        self._telemetry = NoTelemetry()

    def attach(self) -> None:
        """Listen to CrewAI's event bus, and keep its telemetry off.

        Raises:
            ConfigError: this version's bus emits in a way that is not known.
        """
        if self._listener is None:
            self._listener = AglEventListener()
            self._telemetry.install()

    def detach(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()
        self._listener = None
        self._telemetry.remove()

    def identity(self) -> Scope | None:
        """No opinion: scopes are current where they were opened.

        The method of a flow becomes an agent now that it sends.
        """
        speaker()
