"""Resources and rollouts in the form that rollout functions of agentlightning take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import agl_core
from agl_core.errors import ConfigError
from agl_core.tracing import AttemptContext, child_environment

MAIN_LLM: Final = "main_llm"
"""Name of the model in the resources of a rollout function."""
PROMPT: Final = "prompt_template"
"""Name of the prompt that a rollout function takes as an argument."""


@dataclass(slots=True, kw_only=True)
class LLM:
    """A model behind an endpoint.

    In a rollout `endpoint` is the address of this attempt at the gateway, for any HTTP client.
    """

    endpoint: str
    model: str
    api_key: str | None = None
    sampling_parameters: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def base_url(self) -> str:
        return self.endpoint

    def get_base_url(self, *identity: str | None, **named: str | None) -> str:
        """Return `endpoint`, which already names rollout and attempt."""
        del identity, named
        return self.endpoint


@dataclass(slots=True)
class PromptTemplate:
    """A prompt with ``{name}`` placeholders, for `Trainer` as ``initial_resources``."""

    template: str
    engine: str = "f-string"

    def __post_init__(self) -> None:
        """Check the engine.

        Raises:
            ConfigError: it is not ``f-string``.
        """
        if self.engine != "f-string":
            raise ConfigError(
                f"PromptTemplate has engine={self.engine!r}: only 'f-string' is served, so write "
                f"the template with {{name}} placeholders"
            )

    def format(self, **values: Any) -> str:
        """Replace the placeholders, as `agl_core.PromptTemplate.format` does."""
        return agl_core.PromptTemplate(template=self.template).format(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """The attempt of a rollout function."""

    attempt_id: str
    rollout_id: str
    sequence_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The rollout of a rollout function, with its attempt."""

    rollout_id: str
    input: Any
    mode: str
    attempt: AttemptView
    metadata: Mapping[str, Any]
    resources_id: str


NamedResources = dict[str, Any]
"""Resources by name."""
AttemptedRollout = Rollout
Dataset = Sequence


def resources_of(context: AttemptContext) -> dict[str, Any]:
    """Return the attempt's resources by name, the model of this attempt as ``main_llm``."""
    endpoint = child_environment()["OPENAI_BASE_URL"]
    found: dict[str, Any] = {
        name: _llm(item, endpoint, context.llm.api_key) if isinstance(item, agl_core.LLM) else item
        for name, item in context.resources.items.items()
    }
    return {**found, MAIN_LLM: _llm(context.llm, endpoint, context.llm.api_key)}


def rollout_of(context: AttemptContext) -> Rollout:
    """Return the current rollout with its attempt."""
    rollout, attempt = context.rollout, context.attempt
    return Rollout(
        rollout_id=rollout.id,
        input=rollout.task.input,
        mode=rollout.mode,
        attempt=AttemptView(
            attempt_id=attempt.id, rollout_id=rollout.id, sequence_id=attempt.fence
        ),
        metadata=rollout.metadata,
        resources_id=str(context.resources.version),
    )


def _llm(item: agl_core.LLM, endpoint: str, api_key: str) -> LLM:
    return LLM(endpoint=endpoint, model=item.model, api_key=api_key)
