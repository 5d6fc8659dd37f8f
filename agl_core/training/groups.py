"""Grouping of ended attempts by task and agent, for baselines."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from agl_core.config import RolloutConfig
from agl_core.errors import CaptureError, ConfigError, EmptyAnswerError, RewardError, TrainingError
from agl_core.interfaces import AdaptedAttempt, Adapter, AttemptRecord
from agl_core.types import AgentReturn, AttemptStatus, Failure, FailureKind, Losses, TrajectoryGroup
from agl_core.types.rollout import failure_by_calls, none_fit

_log = logging.getLogger(__name__)

_EMPTY_ANSWER: Final = "empty_answer"
_KIND_OF_STATUS = {
    AttemptStatus.TIMED_OUT: FailureKind.DEADLINE,
    AttemptStatus.CANCELLED: FailureKind.CANCELLED,
    AttemptStatus.LOST: FailureKind.LOST,
    AttemptStatus.FAILED: FailureKind.AGENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroups:
    """The groups of a step, with counts of its failed attempts and losses."""

    groups: list[TrajectoryGroup]
    """Groups in the order of their first rollout, then by agent."""
    adapted: list[tuple[AttemptRecord, AdaptedAttempt]]
    """The attempts that are trained on, including penalised ones, by rollout id."""
    failures: dict[str, int]
    """Number of dropped or penalised attempts, by failure kind or ``empty_answer``."""
    losses: Losses
    reward: float | None = None
    """Mean score of the adapted attempts, with penalties; None without attempts."""
    channels: dict[str, float] = field(default_factory=dict[str, float])
    """Mean unweighted reward of the succeeded attempts, by channel."""


@dataclass(slots=True)
class _Step:
    """The results of a step so far."""

    adapted: list[tuple[AttemptRecord, AdaptedAttempt]] = field(
        default_factory=list[tuple[AttemptRecord, AdaptedAttempt]]
    )
    scores: list[float] = field(default_factory=list[float])
    channels: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    losses: Losses = field(default_factory=Losses)
    capture_errors: list[CaptureError] = field(default_factory=list[CaptureError])
    reward_errors: list[RewardError] = field(default_factory=list[RewardError])
    reasons: list[str] = field(default_factory=list[str])


class GroupBuilder:
    """The builder of groups: adapts a step's attempts, applies the failure policy and groups them.

    Every attempt is used with its rewards, penalised or dropped. A penalised attempt has
    ``rollout.penalty`` as its return. A dropped attempt is left out of all baselines and counted as
    ``attempts_dropped_<kind>``. An attempt with a capture error is always dropped. So is an attempt
    with an empty answer (``attempts_dropped_empty_answer``), which is not a capture error.

    An attempt is left out of an agent's group if the agent has no trained call in it
    (``agents_absent``), the agent has no reward (``agents_without_reward``), it lacks a reward on a
    channel on which other attempts have one (``rewards_missing_on_channel_<name>``), or none of the
    agent's choices is trained (``agents_without_trained_choice``). Groups of one attempt have no
    baseline and are counted as ``groups_of_one``.
    """

    def __init__(self, adapter: Adapter, *, rollout: RolloutConfig, max_error_share: float) -> None:
        """Configure the builder.

        Args:
            adapter: Adapts single attempts.
            rollout: Failure policy, from `failures` and `penalty`. ``retry`` means drop, because
                retries have already been made.
            max_error_share: Share of a step's attempts that may be dropped for capture errors.

        Raises:
            ConfigError: the failure policy penalises capture errors.
        """
        if rollout.failures.get(FailureKind.CAPTURE, "drop") == "penalize":
            raise ConfigError(
                "rollout.failures.capture is 'penalize', but an attempt that was not captured "
                "exactly has no tokens to penalise: use 'drop'"
            )
        self._adapter = adapter
        self._rollout = rollout
        self._max_error_share = max_error_share
        self._seen: set[str] = set()

    def build(self, records: Sequence[AttemptRecord]) -> StepGroups:
        """Group the ended attempts of one step.

        Raises:
            CaptureError: more than `max_error_share` of the attempts have capture errors. The type
                is that of the first error, and the message quotes it.
            RewardError: all attempts were dropped, some of them for reward errors.
            TrainingError: all attempts were dropped, or none has a call to train on.
            ConfigError: a configured agent pattern has matched no agent since the run began.
        """
        step = _Step()
        for record in sorted(records, key=lambda record: record.rollout.id):
            self._take(record, step)
        self._check_capture(step, attempts=len(records))
        _check_left(step, attempts=len(records))
        self._adapter.check(self._seen)
        groups = group_attempts([adapted for _, adapted in step.adapted], step.losses)
        if not groups:
            raise TrainingError(
                f"None of {len(step.adapted)} attempts has a call to train on; the agents that ran: "
                f"{sorted(filter(None, self._seen))}; losses so far: {step.losses.counts}. "
                f"{_hint(step.losses.counts)}"
            )
        return StepGroups(
            groups=groups,
            adapted=step.adapted,
            failures=dict(step.failures),
            losses=step.losses,
            reward=_mean(step.scores),
            channels={channel: _mean(values) for channel, values in step.channels.items()},
        )

    def _take(self, record: AttemptRecord, step: _Step) -> None:
        failure = failure_of(record)
        try:
            if failure is None:
                self._use(record, step)
            else:
                self._fail(record, failure, step)
        except RewardError as error:
            step.reward_errors.append(error)
            failed = Failure(kind=FailureKind.REWARD, message=str(error), type="RewardError")
            self._fail(_as_failed(record, failed), failed, step)

    def _use(self, record: AttemptRecord, step: _Step) -> None:
        adapted = self._adapt(record, step)
        if adapted is None:
            return
        if adapted.overflowed:
            # The agent treated the error as an answer; its trajectory would be empty.
            self._fail(record, none_fit(adapted.overflowed), step, adapted=adapted)
            return
        step.adapted.append((record, adapted))
        step.scores.append(adapted.score)
        for channel, value in adapted.channels.items():
            step.channels[channel].append(value)
        if not adapted.calls:
            step.losses.add("attempts_without_calls")

    def _fail(
        self,
        record: AttemptRecord,
        failure: Failure,
        step: _Step,
        *,
        adapted: AdaptedAttempt | None = None,
    ) -> None:
        step.failures[failure.kind.value] += 1
        step.reasons.append(f"{failure.kind.value}: {failure.message}")
        if self._rollout.failures.get(failure.kind, "drop") != "penalize":
            step.losses.add(f"attempts_dropped_{failure.kind.value}")
            return
        adapted = adapted or self._adapt(record, step)
        if adapted is not None:
            step.adapted.append((record, _penalised(adapted, self._rollout.penalty, failure.kind)))
            step.scores.append(self._rollout.penalty)

    def _adapt(self, record: AttemptRecord, step: _Step) -> AdaptedAttempt | None:
        try:
            adapted = self._adapter.adapt(record)
        except EmptyAnswerError as error:
            _log.warning("Attempt %s is dropped: %s", record.attempt.id, error)
            step.failures[_EMPTY_ANSWER] += 1
            step.reasons.append(f"{_EMPTY_ANSWER}: {error}")
            step.losses.add(f"attempts_dropped_{_EMPTY_ANSWER}")
            return None
        except CaptureError as error:
            _log.warning("Attempt %s is dropped: %s", record.attempt.id, error)
            step.capture_errors.append(error)
            step.failures[FailureKind.CAPTURE.value] += 1
            step.losses.add(f"attempts_dropped_{FailureKind.CAPTURE.value}")
            return None
        self._seen |= adapted.seen
        if "calls_without_agent" in adapted.losses.counts:
            self._seen.add("")
        step.losses.merge(adapted.losses)
        return adapted

    def _check_capture(self, step: _Step, *, attempts: int) -> None:
        errors = step.capture_errors
        if not errors or len(errors) <= self._max_error_share * attempts:
            return
        raise type(errors[0])(
            f"{len(errors)} of {attempts} attempts were not captured exactly, more than "
            f"capture.max_error_share = {self._max_error_share} allows. The first: {errors[0]}"
        ) from errors[0]


def group_attempts(attempts: Sequence[AdaptedAttempt], losses: Losses) -> list[TrajectoryGroup]:
    """Group attempts, given in the order of rollout ids, by task and agent (or its alias).

    See `GroupBuilder` for the attempts that are left out.
    """
    names = sorted({_known_as(attempt, agent) for attempt in attempts for agent in attempt.returns})
    members: dict[tuple[str, str, str], list[_Member]] = defaultdict(list)
    for attempt in attempts:
        for name in names:
            agents = [agent for agent in attempt.returns if _known_as(attempt, agent) == name]
            if not agents:
                losses.add("agents_absent")
            for agent in agents:
                policy = attempt.trajectories[agent][0].policy
                members[attempt.group_id, name, policy].append((attempt, agent))
    members = {key: _usable(group, losses) for key, group in members.items()}
    members = {key: group for key, group in members.items() if group}
    losses.add("groups_of_one", sum(1 for group in members.values() if len(group) == 1))
    return [
        TrajectoryGroup(
            group_id=group_id,
            task_id=group[0][0].task_id,
            agent=name,
            policy=policy,
            returns=[attempt.returns[agent] for attempt, agent in group],
            trajectories=[list(attempt.trajectories[agent]) for attempt, agent in group],
        )
        for (group_id, name, policy), group in members.items()
    ]


def _known_as(attempt: AdaptedAttempt, agent: str) -> str:
    return attempt.aliases.get(agent, agent)


_Member = tuple[AdaptedAttempt, str]
"""An attempt and one of its agents, whose trajectories and return are in the group."""


def _usable(members: Sequence[_Member], losses: Losses) -> list[_Member]:
    """Return the members of a group that can be trained on; count the others as losses."""
    rewarded = [member for member in members if not _return(member).unrewarded]
    trained = [member for member in rewarded if _is_trained(member)]
    losses.add("agents_without_trained_choice", len(rewarded) - len(trained))
    channels = {name for member in trained for name in _return(member).given}
    usable: list[_Member] = []
    for member in trained:
        returned = _return(member)
        missing = channels.difference(returned.given) if returned.failure is None else ()
        for channel in missing:
            losses.add(f"rewards_missing_on_channel_{channel}")
        if not missing:
            usable.append(member)
    return usable


def _return(member: _Member) -> AgentReturn:
    attempt, agent = member
    return attempt.returns[agent]


def _is_trained(member: _Member) -> bool:
    """Return whether any choice of the agent was continued or is named by a reward."""
    attempt, agent = member
    named = attempt.returns[agent].choices
    return any(
        triplet.continued or triplet.choice in named.get(triplet.call_id, {})
        for path in attempt.trajectories[agent]
        for triplet in path.calls
    )


def _hint(counts: Mapping[str, int]) -> str:
    """Return a fix for a step without a call to train on, for the error message."""
    if counts.get("calls_constrained"):
        return (
            "The calls were sampled under a constraint (response_format, a forced tool_choice or "
            "the like): leave it out, or set policies.<name>.train_constrained = true"
        )
    if any(cause.startswith("calls_filtered_") for cause in counts):
        return "Filters of training left calls out, see the causes"
    if counts.get("agents_without_reward"):
        return "No reward reached the agents to train: reward them, or the whole attempt"
    if any(cause.startswith("rewards_missing_on_channel_") for cause in counts):
        return "Give every attempt a reward on each channel, 0 where there is nothing to reward"
    return (
        "They made no call that the gateway recorded with tokens: let the agents' clients use "
        "agl.current().llm"
    )


def failure_of(record: AttemptRecord) -> Failure | None:
    """Return the failure of an ended attempt; None if it succeeded."""
    attempt = record.attempt
    if attempt.status is AttemptStatus.SUCCEEDED:
        return None
    if attempt.failure is not None:
        return failure_by_calls(attempt.failure, (span.call for span in record.spans if span.call))
    kind = _KIND_OF_STATUS.get(attempt.status, FailureKind.LOST)
    return Failure(kind=kind, message=f"the attempt ended as {attempt.status.value}")


def _as_failed(record: AttemptRecord, failure: Failure) -> AttemptRecord:
    attempt = msgspec.structs.replace(record.attempt, status=AttemptStatus.FAILED, failure=failure)
    return replace(record, attempt=attempt)


def _penalised(adapted: AdaptedAttempt, penalty: float, kind: FailureKind) -> AdaptedAttempt:
    returns = {
        agent: msgspec.structs.replace(
            returned,
            value=penalty,
            runs={},
            calls={},
            choices={},
            channels={},
            given=(),
            unrewarded=False,
            failure=kind,
        )
        for agent, returned in adapted.returns.items()
    }
    return replace(adapted, returns=returns, score=penalty, channels={})


def _check_left(step: _Step, *, attempts: int) -> None:
    if step.adapted:
        return
    counts = f"{attempts} attempts, failures {dict(step.failures)}"
    if step.reward_errors:
        first = step.reward_errors[0]
        raise RewardError(f"No attempt of the step is usable ({counts}). {first}") from first
    if step.reasons:
        raise TrainingError(
            f"No attempt of the step is usable ({counts}). The first failed with "
            f"{step.reasons[0]}. Run the agent on one task alone to see it whole"
        )
    raise TrainingError(
        f"No attempt of the step is usable ({counts}): give it tasks whose attempts end"
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
