"""The options of the section ``[events]``."""

from __future__ import annotations

import os
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from agl_core.errors import ConfigError


class BusOptions(BaseModel):
    """Options of every event bus."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    prefix: str = Field(default="agl", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=100)
    """Begins the names of everything that is made on the server."""
    history: PositiveInt = 1_000
    """Newest events that are kept of each channel, where the bus keeps any."""
    timeout_s: float = Field(default=10.0, gt=0, le=600)
    """Longest wait for an answer of the server."""


class EventsOptions(BusOptions):
    """Where the events of a run go, and how many are kept until the bus takes them."""

    url: str = ""
    """Address of the bus, such as ``redis://localhost:6379/0`` or ``amqp://localhost/``."""
    url_env: str = "AGL_EVENTS_URL"
    """Environment variable with the address, read where `url` is empty, so that no password stands
    in a file."""
    service: str = Field(default="agl-core", min_length=1, max_length=200)
    """`BusEvent.service` of the run's events; those of a runner in another process have
    ``/runner/HOST/NUMBER`` after it."""
    runners: bool = True
    """Runners in other processes publish the events of their attempts; they need the library of
    the bus and its address."""
    content: bool = False
    """Also send inputs, outputs, prompts and the texts of errors."""
    outbox_events: PositiveInt = 100_000
    """Events that wait on disk at most while the bus is down; later ones are dropped and counted."""
    outbox_mb: float = Field(default=256.0, gt=0)
    """Megabytes that they have at most."""
    event_kb: float = Field(default=1_024.0, ge=4, le=65_536)
    """Kilobytes of an event at most; larger ones are cut and counted."""
    flush_s: float = Field(default=5.0, ge=0, le=50)
    """Longest wait at the end of the run for the bus to take the rest."""

    def address(self) -> str:
        """Return the address of the bus.

        Raises:
            ConfigError: there is none.
        """
        url = self.url or os.environ.get(self.url_env, "")
        if not url:
            raise ConfigError(
                f"Configuration: events.url is empty, and so is the environment variable "
                f"{self.url_env}: set one of them to the address of the event bus"
            )
        return url

    def of_bus(self) -> dict[str, Any]:
        """Return the options that belong to the bus."""
        return self.model_dump(include=set(BusOptions.model_fields))
