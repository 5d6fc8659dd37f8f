"""The options of the section ``[limits]``."""

from __future__ import annotations

import os
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, model_validator

from agl_core.config import RunConfig, validate
from agl_core.errors import ConfigError, MissingExtraError
from agl_limits._limiter import parse_rate

SECTION: Final = "limits"
"""Name of the section."""


def _checked(given: str) -> str:
    try:
        parse_rate(given)
    except MissingExtraError:
        return given  # the process that counts raises it
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return given


Rate = Annotated[str, AfterValidator(_checked)]
"""A number and a unit, such as ``100/minute``; see `agl_limits.parse_rate`."""


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class EndpointLimits(_Options):
    """How much an endpoint of models outside this run is asked; further requests wait."""

    requests: Rate | None = None
    """Requests, such as ``500/minute``."""
    tokens: Rate | None = None
    """Tokens of prompts and answers, such as ``200000/minute``: of the prompt one per four
    characters, of the answer the ``max_tokens`` of the request."""
    answer_tokens: NonNegativeInt = 512
    """Tokens that count for the answer to a request without ``max_tokens``."""


class LimitsOptions(_Options):
    """How many model requests the gateway accepts, and how many go to models outside."""

    per_key: Rate | None = None
    """Requests of each key, that is of each attempt, such as ``600/minute``."""
    per_agent: Rate | None = None
    """Requests of each agent, of all attempts together."""
    agents: dict[str, Rate] = Field(default_factory=dict[str, Rate])
    """Agent's name or glob to a rate that replaces `per_agent`; the first that matches counts."""
    per_policy: Rate | None = None
    """Requests that each policy answers."""
    per_address: Rate | None = None
    """Requests of each client's address."""
    endpoints: dict[str, EndpointLimits] = Field(default_factory=dict[str, EndpointLimits])
    """``base_url`` or glob of endpoints outside to their limits; the first that matches counts."""
    redis: str = ""
    """Address of a Redis in which several processes count together, such as
    ``redis://localhost:6379/0``; empty: each process counts by itself."""
    redis_env: str = "AGL_LIMITS_REDIS"
    """Environment variable with that address, read where `redis` is empty, so that no password
    stands in a file."""
    prefix: str = "agl"
    """Begins the names of the counts, so that runs that share a Redis count separately."""

    @model_validator(mode="after")
    def _names_what_it_limits(self) -> LimitsOptions:
        for name, endpoint in self.endpoints.items():
            if endpoint.requests is None and endpoint.tokens is None:
                raise ValueError(
                    f"endpoints.{name!r} limits nothing: set its requests, its tokens or both"
                )
        return self

    @property
    def address(self) -> str:
        """Address of the Redis; empty without one."""
        return self.redis or os.environ.get(self.redis_env, "")


def options_of(config: RunConfig) -> LimitsOptions:
    """Return the options of a configuration that has the section.

    Raises:
        ConfigError: an option is wrong.
    """
    return validate(LimitsOptions, config.sections[SECTION], where=SECTION)
