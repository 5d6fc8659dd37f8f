"""The algorithm ``sft``: imitation of given conversations, without rollouts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agl_core.adapters import serving_policy
from agl_core.errors import ConfigError, TrainingError
from agl_core.interfaces import Engine, Filter, Renderer
from agl_core.training import Weighting
from agl_core.types import CallCredit, Losses, Policy, TrajectoryGroup
from agl_imitation._conversations import Example, read_examples
from agl_imitation._credit import imitated
from agl_imitation._filtering import cleaned
from agl_imitation._rendering import Chat, UnusableExampleError, rendered
from agl_imitation._stored import Selection, read_run

__all__ = ["SFT", "SFTOptions"]


class SFTOptions(BaseModel):
    """Options of `SFT`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    data: list[str] = Field(default_factory=list[str])
    """Files of conversations, one JSON object per line: chat fine-tuning examples, or preference
    pairs, of which the preferred side is imitated. Relative to the working directory."""
    runs: list[str] = Field(default_factory=list[str])
    """Stored runs whose training rollouts are imitated, on the tokens that were recorded: a run's
    directory, a configuration, a store's file or address."""
    agents: list[str] = Field(default_factory=list[str])
    """Names or globs of the agents of `runs` to imitate; empty: those that this run trains."""
    min_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Least return of an agent in an attempt of `runs`; None: any, also none."""
    keep: int | None = Field(default=None, ge=1)
    """Attempts of `runs` per task, step and agent, those with the greatest return; None: all."""
    agent: str | None = None
    """Agent of the conversations that have no field ``agent``; None: the only agent that the run
    trains, if it trains one by name."""
    batch_size: int = Field(default=8, ge=1)
    """Conversations per step, in shuffled epochs; what an agent did in an attempt is one."""
    unusable: Literal["error", "drop"] = "error"
    """Whether a conversation whose tokens the chat template does not determine ends the run, or is
    left out and counted. One that is too long for the model is always left out and counted."""
    weighting: Weighting = "token"
    """How tokens share the loss: each token, each answer (``sequence``) or each conversation
    (``attempt``) alike."""

    @model_validator(mode="after")
    def _has_data(self) -> SFTOptions:
        if not self.data and not self.runs:
            raise ValueError("data and runs are empty: name a file of conversations or a run")
        unread = sorted({"agents", "min_reward", "keep"} & self.model_fields_set)
        if unread and not self.runs:
            raise ValueError(f"{', '.join(unread)} select from runs, but there are none")
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
        self._pool: list[Example | TrajectoryGroup] | None = None
        """What steps draw from: conversations to render, and recorded tokens."""
        self._renderers: dict[str, Renderer] = {}
        self._filters: Sequence[Filter] = ()

    def filter_by(self, filters: Sequence[Filter]) -> None:
        """Clean conversations before they are rendered."""
        self._filters = filters

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
        losses, groups = Losses(), list[TrajectoryGroup]()
        if self._pool is None:
            self._pool = await self._read(policies, engine, losses)
        for index in drawn(step, self.options.batch_size, of=len(self._pool), seed=seed):
            item = self._pool[index]
            if isinstance(item, TrajectoryGroup):
                groups.append(_served(item, _policy_of(item.agent, policies)))
            elif not item.trained:
                losses.add("conversations_without_weight")
            else:
                try:
                    groups.append(rendered(item, await self._chat(item, policies, engine)))
                except UnusableExampleError as error:
                    losses.add(self._dropped(error))
        if not groups:
            raise TrainingError(
                f"None of the {self.options.batch_size} conversations of step {step + 1} can be "
                f"trained on: {losses.counts}"
            )
        return groups, losses

    async def _read(
        self, policies: Mapping[str, Policy], engine: Engine, losses: Losses
    ) -> list[Example | TrajectoryGroup]:
        """Return all examples, and count what is left out of stored runs."""
        options = self.options
        examples = [cleaned(each, self._filters, losses) for each in self._examples]
        pool: list[Example | TrajectoryGroup] = [*_assigned(examples, options.agent, policies)]
        selection = Selection(
            agents=tuple(options.agents or _trained(policies)),
            min_reward=options.min_reward,
            keep=options.keep,
        )
        for run in options.runs:
            items, left_out = await read_run(run, selection, self._filters)
            losses.merge(left_out)
            for item in items:
                policy = _policy_of(item.agent, policies, where=f"Run {run!r}")
                if isinstance(item, TrajectoryGroup):
                    await _check_tokens(item, policy, engine, run=run)
            pool.extend(items)
        return pool

    def _dropped(self, error: UnusableExampleError) -> str:
        """Return the cause under which a conversation is counted.

        Raises:
            ConfigError: it ends the run instead.
        """
        if self.options.unusable == "error" and error.cause != "conversations_too_long":
            raise ConfigError(
                f"{error}. Take the conversation out, or set algorithm.unusable = 'drop'"
            ) from error
        return error.cause

    async def _chat(self, example: Example, policies: Mapping[str, Policy], engine: Engine) -> Chat:
        """Return how the agent's policy reads conversations.

        Raises:
            ConfigError: the engine cannot render conversations.
        """
        policy = _policy_of(example.agent, policies)
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
    shuffled: dict[int, list[int]] = {}
    found: list[int] = []
    for at in range(step * size, (step + 1) * size):
        epoch, place = divmod(at, of)
        if epoch not in shuffled:
            shuffled[epoch] = list(range(of))
            random.Random(f"sft:{seed}:{epoch}").shuffle(shuffled[epoch])  # noqa: S311
        found.append(shuffled[epoch][place])
    return found


def _assigned(
    examples: list[Example], agent: str | None, policies: Mapping[str, Policy]
) -> list[Example]:
    """Return the examples with their agents.

    Raises:
        ConfigError: an example names no agent, or one that the run does not train.
    """
    trained = _trained(policies)
    if agent is None and len(trained) == 1 and not any(mark in trained[0] for mark in "*?["):
        agent = trained[0]
    found: list[Example] = []
    for example in examples:
        name = example.agent or agent
        if not name:
            raise ConfigError(
                f"{example.place} names no agent: add the field 'agent', or set algorithm.agent"
            )
        _policy_of(name, policies, where=example.place)
        found.append(replace(example, agent=name))
    return found


def _trained(policies: Mapping[str, Policy]) -> list[str]:
    """Return the names and globs of the agents that the run trains."""
    return [name for each in policies.values() if each.trainable for name in each.agents]


def _policy_of(agent: str, policies: Mapping[str, Policy], *, where: str = "") -> Policy:
    """Return the policy that an agent trains.

    Raises:
        ConfigError: the run does not train the agent.
    """
    policy = serving_policy(agent, list(policies.values()))
    if policy is None or not policy.trainable:
        raise ConfigError(
            f"{where} is of agent {agent!r}, which this run does not train; it trains "
            f"{sorted(_trained(policies))}: "
            f"add the agent to 'agents', or take the conversation out"
        )
    return policy


def _served(group: TrajectoryGroup, policy: Policy) -> TrajectoryGroup:
    """Return recorded calls as calls of the policy that imitates them, in its current version."""
    change = msgspec.structs.replace
    paths = [
        change(
            path,
            policy=policy.name,
            calls=[
                change(call, policy=policy.name, policy_version=policy.version)
                for call in path.calls
            ],
        )
        for path in group.trajectories[0]
    ]
    return change(group, policy=policy.name, trajectories=[paths])


async def _check_tokens(
    group: TrajectoryGroup, policy: Policy, engine: Engine, *, run: str
) -> None:
    """Check that recorded tokens mean to the policy what they meant to the model that sampled them.

    Raises:
        ConfigError: the model had another vocabulary.
    """
    size, backend = engine.vocab_size(policy.name), engine.backend(policy.name)
    for path in group.trajectories[0]:
        call = path.calls[0]
        text = await backend.detokenize(list(call.response_ids))
        if (size is not None and max(path.token_ids) >= size) or (
            text is not None and call.response_text.strip() not in text
        ):
            raise ConfigError(
                f"Run {run!r}: the tokens of call {call.call_id!r} are not {call.response_text!r:.80} "
                f"to policy {policy.name!r}, so a model with another vocabulary sampled them: "
                f"export the run with agl rollouts export --format openai, and name the file in "
                f"algorithm.data"
            )
