"""The algorithm ``sft``: imitation of given conversations, without rollouts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agl_core.adapters import serving_policy
from agl_core.errors import ConfigError, TrainingError
from agl_core.interfaces import Engine, Renderer
from agl_core.training import Weighting
from agl_core.types import CallCredit, Losses, Policy, TrajectoryGroup
from agl_imitation._conversations import Example, read_examples
from agl_imitation._credit import imitated
from agl_imitation._rendering import Chat, UnusableExampleError, rendered

__all__ = ["SFT", "SFTOptions"]


class SFTOptions(BaseModel):
    """Options of `SFT`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    data: list[str] = Field(default_factory=list[str])
    """Files of conversations, one JSON object per line: chat fine-tuning examples, or preference
    pairs, of which the preferred side is imitated. Relative to the working directory."""
    agent: str | None = None
    """Agent of the conversations that have no field ``agent``; None: the only agent that the run
    trains, if it trains one by name."""
    batch_size: int = Field(default=8, ge=1)
    """Conversations per step, in shuffled epochs."""
    unusable: Literal["error", "drop"] = "error"
    """Whether a conversation whose tokens the chat template does not determine ends the run, or is
    left out and counted. One that is too long for the model is always left out and counted."""
    weighting: Weighting = "token"
    """How tokens share the loss: each token, each answer (``sequence``) or each conversation
    (``attempt``) alike."""

    @model_validator(mode="after")
    def _has_data(self) -> SFTOptions:
        if not self.data:
            raise ValueError("data is empty: name a file of conversations")
        return self


class SFT:
    """Supervised fine-tuning; implements `agl_core.interfaces.Demonstrator`.

    For the assistant messages y[1], y[2], ... of the step's conversations, except those of weight
    0, with x[i] the prompt that precedes y[i]::

        L = - sum_i sum_t w[i,t] log p(y[i,t] | x[i], y[i,<t]) / sum_i sum_t w[i,t]

    and w = 1 (see `SFTOptions.weighting`): the mean cross-entropy over their tokens, the token that
    ends the answer included (Ouyang et al. 2022, arXiv:2203.02155, section 3.5).
    """

    loss = "cross_entropy"

    def __init__(self, options: SFTOptions) -> None:
        """Read the files.

        Raises:
            ConfigError: a file cannot be read, or a line of it is malformed.
        """
        self.options = options
        self._examples = [each for path in options.data for each in read_examples(Path(path))]
        self._assigned: list[Example] | None = None
        self._renderers: dict[str, Renderer] = {}

    @property
    def loss_options(self) -> Mapping[str, Any]:
        """None: the loss reads the weights alone."""
        return {}

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        """Return the weights of a conversation's tokens.

        Raises:
            TrainingError: the group is empty.
        """
        return imitated(group, weighting=self.options.weighting)

    async def demonstrate(
        self, step: int, policies: Mapping[str, Policy], engine: Engine, *, seed: int
    ) -> tuple[list[TrajectoryGroup], Losses]:
        """See `agl_core.interfaces.Demonstrator.demonstrate`."""
        if self._assigned is None:
            self._assigned = _checked(self._examples, self.options.agent, policies)
        losses, groups = Losses(), list[TrajectoryGroup]()
        for index in drawn(step, self.options.batch_size, of=len(self._assigned), seed=seed):
            example = self._assigned[index]
            if not example.trained:
                losses.add("conversations_without_weight")
                continue
            chat = await self._chat(example, policies, engine)
            try:
                groups.append(rendered(example, chat))
            except UnusableExampleError as error:
                if self.options.unusable == "error" and error.cause != "conversations_too_long":
                    raise ConfigError(
                        f"{error}. Take the conversation out, or set algorithm.unusable = 'drop'"
                    ) from error
                losses.add(error.cause)
        if not groups:
            raise TrainingError(
                f"None of the {self.options.batch_size} conversations of step {step + 1} can be "
                f"trained on: {losses.counts}"
            )
        return groups, losses

    async def _chat(self, example: Example, policies: Mapping[str, Policy], engine: Engine) -> Chat:
        """Return how the agent's policy reads conversations.

        Raises:
            ConfigError: the engine cannot render conversations.
        """
        policy = serving_policy(example.agent, list(policies.values()))
        assert policy is not None  # `_checked` refuses others
        if policy.model not in self._renderers:
            render = engine.renderer(policy.model)
            if render is None:
                raise ConfigError(
                    f"{type(engine).__name__} does not give the chat template of model "
                    f"{policy.model!r}, which conversations are rendered with: choose an engine "
                    f"that has a renderer, such as engine.name = 'torch'"
                )
            self._renderers[policy.model] = render
        limit = await engine.backend(policy.name).context_length()
        return Chat(policy=policy, render=self._renderers[policy.model], limit=limit)


def drawn(step: int, size: int, *, of: int, seed: int) -> list[int]:
    """Return the indices of a step's examples; each index appears once in an epoch."""
    orders: dict[int, list[int]] = {}
    found: list[int] = []
    for at in range(step * size, (step + 1) * size):
        epoch, place = divmod(at, of)
        if epoch not in orders:
            orders[epoch] = list(range(of))
            random.Random(f"sft:{seed}:{epoch}").shuffle(orders[epoch])  # noqa: S311
        found.append(orders[epoch][place])
    return found


def _checked(
    examples: list[Example], agent: str | None, policies: Mapping[str, Policy]
) -> list[Example]:
    """Return the examples with their agents.

    Raises:
        ConfigError: an example names no agent, or one that the run does not train.
    """
    trained = [name for each in policies.values() if each.trainable for name in each.agents]
    if agent is None and len(trained) == 1 and not any(mark in trained[0] for mark in "*?["):
        agent = trained[0]
    found: list[Example] = []
    for example in examples:
        name = example.agent or agent
        if not name:
            raise ConfigError(
                f"{example.place} names no agent: add the field 'agent', or set algorithm.agent"
            )
        policy = serving_policy(name, list(policies.values()))
        if policy is None or not policy.trainable:
            raise ConfigError(
                f"{example.place} is of agent {name!r}, which this run does not train; it trains "
                f"{sorted(trained)}: add the agent to 'agents', or take the conversation out"
            )
        found.append(replace(example, agent=name))
    return found
