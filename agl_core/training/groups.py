"""From ended attempts to the groups that baselines are taken over."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from agl_core.config import RolloutConfig
from agl_core.errors import (
    CaptureError,
    ConfigError,
    EmptyAnswerError,
    RewardError,
    TrainingError,
)
from agl_core.interfaces import AdaptedAttempt, Adapter, AttemptRecord
from agl_core.types import (
    AgentReturn,
    AttemptStatus,
    Failure,
    FailureKind,
    Losses,
    TrajectoryGroup,
)
from agl_core.types.overflow import failure_by_calls, none_fit

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
    """What a step's attempts became."""

    groups: list[TrajectoryGroup]
    """By group in the order of their first rollout, then by agent."""
    adapted: list[tuple[AttemptRecord, AdaptedAttempt]]
    """The attempts that are trained on, by rollout id; penalised ones included."""
    failures: dict[str, int]
    """Failure kind, or ``empty_answer``, to attempts, whether dropped or penalised."""
    losses: Losses
    reward: float
    """Mean score of the adapted attempts, penalties included."""
    channels: dict[str, float]
    """Mean per channel of the unweighted rewards of the attempts that succeeded."""


@dataclass(slots=True)
class _Step:
    """What has been found of a step so far."""

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
    """Adapts a step's attempts, applies the failure policy and groups what is left.

    Every attempt ends in one of three ways. It is used with its rewards. It is penalised: used
    with ``rollout.penalty`` as its only return. Or it is dropped before any baseline is taken,
    counted as ``attempts_dropped_<kind>``. An attempt whose capture is not exactly true is always
    dropped, and so is one with an empty answer (``attempts_dropped_empty_answer``), which does not
    count as a capture error.

    An attempt is left out of an agent's group where it never reached the agent (``agents_absent``),
    no reward reached the agent (``agents_without_reward``), it has no reward on a channel that the
    others have (``rewards_missing_on_channel_<name>``), or none of its answers is trained
    (``agents_without_trained_choice``). Groups of one attempt have no baseline (``groups_of_one``).
    """

    def __init__(self, adapter: Adapter, *, rollout: RolloutConfig, max_error_share: float) -> None:
        """Take the failure policy.

        Args:
            adapter: Adapts single attempts.
            rollout: `failures` and `penalty` apply; a retry has been used up by the time an
                attempt comes here, so it means drop.
            max_error_share: Share of a step's attempts that may be dropped for capture errors.

        Raises:
            ConfigError: capture errors are to be penalised.
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
            CaptureError: more than `max_error_share` of the attempts were not captured exactly;
                of the type of the first error, which it quotes.
            RewardError: no attempt is left, and rewards were among the reasons.
            TrainingError: no attempt is left, or none has a call to train on.
            ConfigError: an agent to train has matched no agent since the run began.
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
            # The agent took the refusal for an answer; its trajectory would be empty.
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
    """Group by task and agent, or its alias; attempts come ordered by rollout id.

    A group holds the attempts that are trained, with rewards that were given; see `GroupBuilder`.
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
"""An attempt and the agent whose trajectories and return are taken of it."""


def _usable(members: Sequence[_Member], losses: Losses) -> list[_Member]:
    """The members of a group without those that nothing is learned from."""
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
    """Whether any answer of the agent gets a weight: it was continued, or a reward names it."""
    attempt, agent = member
    named = attempt.returns[agent].choices
    return any(
        triplet.continued or triplet.choice in named.get(triplet.call_id, {})
        for path in attempt.trajectories[agent]
        for triplet in path.calls
    )


def _hint(counts: Mapping[str, int]) -> str:
    """What to do about a step that trains nothing."""
    if counts.get("calls_constrained"):
        return (
            "The calls were sampled under a constraint (response_format, a forced tool_choice or "
            "the like): leave it out, or set policies.<name>.train_constrained = true"
        )
    if counts.get("agents_without_reward"):
        return "No reward reached the agents to train: reward them, or the whole attempt"
    if any(cause.startswith("rewards_missing_on_channel_") for cause in counts):
        return "Give every attempt a reward on each channel, 0 where there is nothing to reward"
    return (
        "They made no call that the gateway recorded with tokens: let the agents' clients use "
        "agl.current().llm"
    )


def failure_of(record: AttemptRecord) -> Failure | None:
    """Why an ended attempt failed; None when it succeeded."""
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
