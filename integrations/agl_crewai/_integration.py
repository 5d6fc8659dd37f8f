"""Zero-code mode: one listener for every crew, flow and agent while agl is attached."""

from __future__ import annotations

from agl_core.types import Scope
from agl_crewai._frames import speaker
from agl_crewai._listener import AglEventListener
from agl_crewai._names import FRAMEWORK


class CrewAIIntegration:
    """CrewAI, attached to the process."""

    name = FRAMEWORK

    def __init__(self) -> None:
        self._listener: AglEventListener | None = None

    def attach(self) -> None:
        """Listen to CrewAI's event bus.

        Raises:
            ConfigError: this version's bus emits in a way that is not known.
        """
        if self._listener is None:
            self._listener = AglEventListener()

    def detach(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()
        self._listener = None

    def identity(self) -> Scope | None:
        """Who speaks here, read where the request leaves: no handler of the bus has run by then."""
        return speaker()
