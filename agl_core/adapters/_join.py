"""The exact join of tracing, which records a call's agent, and gateway, which records tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agl_core import semconv
from agl_core.adapters import _evidence
from agl_core.adapters._images import images_of
from agl_core.adapters._select import AgentSelector, serving_policy
from agl_core.errors import CaptureError, TokenMismatchError
from agl_core.interfaces import AttemptRecord
from agl_core.types import AttemptStatus, Image, Losses, ModelCall, Policy, Span, SpanKind
from agl_core.types.rollout import says_overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedCall:
    """One answered call, merged from the records of tracing and gateway."""

    call: ModelCall
    agent: str
    agent_run_id: str
    trained: bool
    alias: str = ""
    """Alias of the agent in this attempt; empty if it has none."""
    images: list[Image] = field(default_factory=list[Image])
    """Images of the prompt, in its order; empty if the call is not trained."""
    ordinal: int = 0
    """Index among the calls of its agent, in causal order."""
    run_ordinal: int = 0
    """Index of its agent run among the runs of its agent, ordered by first call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedAttempt:
    """The calls of one attempt in causal order, and all targets that a reward may name."""

    record: AttemptRecord
    calls: tuple[JoinedCall, ...]
    dropped: Mapping[str, str]
    """Agents of the dropped calls, by call id."""
    overflowed: Mapping[str, str]
    """Backend errors of agents whose trained calls all had prompts longer than the model's context,
    by agent."""
    runs: frozenset[tuple[str, str]]
    """Pairs of agent and run id; several agents may use the same run id."""
    seen: frozenset[str]
    """Agents that were seen, by alias or else by name, as the selection uses them."""
    aliases: Mapping[str, str]
    """Aliases by agent."""
    losses: Losses


def join(
    record: AttemptRecord, *, agents: AgentSelector, policies: Sequence[Policy]
) -> JoinedAttempt:
    """Merge the client's and the gateway's spans of one attempt by exact call id.

    A call is trained if its agent is selected, its policy is trainable and its scope does not set
    ``trainable=False``; only trained calls need tokens. Earlier tries of a retried request and
    calls that the backend refused are dropped and counted. Calls that were cut off are dropped and
    counted in an attempt that failed; in an attempt that succeeded, a trained one raises an error.
    In a rollout that is not for training, no call is trained, so no call needs tokens.

    Calls are ordered by the client's sequence if one recorder numbered every call, otherwise by the
    gateway's start time; ties are ordered by sequence, then id.

    Raises:
        MissingTokensError: a trained call has no token ids or no log-probabilities.
        TokenMismatchError: ids, log-probabilities and choices of a trained call do not match.
        CaptureError: the recorders contradict each other, one of them missed a call, or the tokens
            of a trained call do not state the positions of its images.
    """
    return _Join(record, agents, policies).run()


class _Join:
    def __init__(
        self, record: AttemptRecord, agents: AgentSelector, policies: Sequence[Policy]
    ) -> None:
        self._record = record
        self._agents = agents
        self._policies = policies
        self._opponents = {policy.name for policy in policies if policy.share is not None}
        self._training = record.rollout.mode == "train"
        self._succeeded = record.attempt.status is AttemptStatus.SUCCEEDED
        self._losses = Losses()
        self._overflowed: dict[str, str] = {}
        self._spans = _evidence.sort_spans(record)
        self._aliases = aliases_of(record.spans)
        self._by_sequence = (
            self._spans.single_clock and self._spans.structure.keys() >= self._spans.answers.keys()
        )

    def run(self) -> JoinedAttempt:
        self._check_recorders()
        calls: list[JoinedCall] = []
        dropped: dict[str, str] = {}
        for call_id, tries in self._spans.answers.items():
            joined = self._merge(call_id, tries)
            if joined is None or not self._sampled(joined):
                agent = joined.agent if joined else self._speaker(call_id, tries)
                dropped[call_id] = agent
                continue
            calls.append(self._with_images(joined) if joined.trained else joined)
            if (
                not joined.trained
                and self._training
                and self._agents.matches(self._known_as(joined.agent))
            ):
                cause = "of_opponents" if joined.call.policy in self._opponents else "untrainable"
                constrained = self._refuses_constraint(joined.call)
                self._losses.add(f"calls_{'constrained' if constrained else cause}")
        ordered = _numbered(sorted(calls, key=self._order))
        sampled = {call.agent for call in calls if call.trained}
        return JoinedAttempt(
            record=self._record,
            calls=tuple(ordered),
            dropped=dropped,
            overflowed={a: why for a, why in self._overflowed.items() if a not in sampled},
            runs=self._runs(ordered),
            seen=self._seen(ordered, dropped),
            aliases=self._aliases,
            losses=self._losses,
        )

    def _check_recorders(self) -> None:
        for span in self._spans.failures:
            if span.call_id and span.agent and not self._trains(span):
                self._losses.add("calls_inexact")
            elif self._training:
                _evidence.raise_recorded(span, framework=self._framework(span))
        for span in self._spans.unsent:
            self._check_unsent(span)
        for call_id, span in self._spans.structure.items():
            self._check_sent(call_id, span)

    def _trains(self, span: Span) -> bool:
        """Return whether the call of a client span is trained; only such calls can raise errors."""
        name = self._known_as(span.agent or "")
        policy = serving_policy(name, self._policies)
        return (
            self._training
            and span.attributes.get(semconv.AGL_TRAINABLE, True)
            and self._agents.matches(name)
            and policy is not None
            and policy.trainable
        )

    def _check_sent(self, call_id: str, span: Span) -> None:
        """Compare the number of requests of a call with the number of gateway records."""
        sent = span.attributes.get(semconv.AGL_REQUESTS, 1)
        missing = sent - len(self._spans.answers.get(call_id, ()))
        left = missing > span.attributes.get(semconv.AGL_UNSENT, 0)
        if left and call_id not in self._spans.answers and self._trains(span):
            where = self._describe(call_id, span.agent)
            raise CaptureError(
                f"{where} left for the gateway, which has no record of it: let the agent use "
                f"the base URL and API key of this attempt, and finish its calls before it "
                f"returns"
            )
        self._losses.add("calls_unsent", max(missing, 0))

    def _check_unsent(self, span: Span) -> None:
        if semconv.AGL_ELSEWHERE in span.attributes:
            return  # counted when it was sent to another address or refused
        if span.status == "error":
            self._losses.add("calls_unsent")
            return
        if not self._trains(span):
            return
        where = _evidence.describe(None, agent=span.agent, framework=self._framework(span))
        raise CaptureError(
            f"{where} (span {span.name!r}) never passed through the gateway, so its tokens are "
            f"unknown: build its client from agl.current().llm, ask over HTTP, switch off response "
            f"caches, or do not train this agent"
        )

    def _merge(self, call_id: str, tries: Sequence[ModelCall]) -> JoinedCall | None:
        """Merge the record of a call's last try; return None if every try was superseded."""
        last = max(call.tries for call in tries)
        final = [call for call in tries if call.tries == last and not call.superseded]
        self._losses.add("superseded_tries", len(tries) - len(final))
        if not final:
            return None
        agent = self._speaker(call_id, final)
        if len(final) > 1 and not self._trained(final[0], agent):
            self._losses.add("calls_inexact", len(final) - 1)
        elif len(final) > 1:
            raise CaptureError(
                f"{self._describe(call_id, agent)} has {len(final)} records, and nothing states "
                f"which one the agent used: send each request once, under a call id of its own"
            )
        call, span = final[0], self._spans.structure.get(call_id)
        run_id = (span.agent_run_id if span else None) or call.agent_run_id
        return JoinedCall(
            call=call,
            agent=agent,
            agent_run_id=run_id,
            trained=self._trained(call, agent),
            alias=self._aliases.get(agent, ""),
        )

    def _speaker(self, call_id: str, tries: Sequence[ModelCall]) -> str:
        span = self._spans.structure.get(call_id)
        traced = (span.agent if span else None) or ""
        sent = tries[-1].agent
        if traced and sent and traced != sent:
            chosen = any(self._agents.matches(self._known_as(name)) for name in (traced, sent))
            if not (chosen and tries[-1].trainable):
                self._losses.add("calls_inexact")
                return traced
            raise CaptureError(
                f"{self._describe(call_id, traced)} was sent by agent {sent!r} as the gateway "
                f"recorded it: open the agent's scope in the task that sends the request"
            )
        return traced or sent

    def _trained(self, call: ModelCall, agent: str) -> bool:
        if not (self._training and self._agents.matches(self._known_as(agent)) and call.trainable):
            return False
        policy = next((policy for policy in self._policies if policy.name == call.policy), None)
        if policy is None:
            names = [policy.name for policy in self._policies]
            raise CaptureError(
                f"{self._describe(call.id, agent)} was answered by policy {call.policy!r}, which "
                f"is none of {names}: let the gateway route this agent to one of them"
            )
        return policy.trainable and not self._refuses_constraint(call)

    def _refuses_constraint(self, call: ModelCall) -> bool:
        """Return whether the call's constraint on sampling excludes it from training."""
        if not (call.trainable and call.sampling.constraints):
            return False
        policy = next((policy for policy in self._policies if policy.name == call.policy), None)
        return policy is not None and policy.trainable and not policy.train_constrained

    def _sampled(self, joined: JoinedCall) -> bool:
        """Return whether the call has an answer to keep; count it as a loss otherwise."""
        call = joined.call
        if call.status_code >= 400:  # noqa: PLR2004 (HTTP errors)
            overflow = says_overflow(call.error)
            self._losses.add("calls_overflowed" if overflow else "calls_refused")
            if overflow and joined.trained:
                self._overflowed.setdefault(joined.agent, call.error)
            return False
        left = self._left(call)
        if left or not call.complete:
            if self._succeeded and joined.trained:
                reason = left or call.error or "the answer was cut off before its end"
                raise CaptureError(
                    f"{self._describe(call.id, joined.agent)} is incomplete ({reason}): let "
                    f"the agent read every answer to its end, or let the attempt fail"
                )
            self._losses.add("calls_incomplete")
            return False
        if not joined.agent and self._training:
            self._check_anonymous(call)
        if joined.trained:
            where = self._describe(call.id, joined.agent)
            if call.error:
                raise TokenMismatchError(
                    f"{where} was answered, but its tokens are not exactly true ({call.error}): "
                    f"serve its policy {call.policy!r} from a backend whose ids add up"
                )
            _evidence.check_tokens(call, where=where)
        return True

    def _left(self, call: ModelCall) -> str:
        """Return how the client stopped reading before the answer's end; empty if it did not."""
        span = self._spans.structure.get(call.id)
        taken = span.attributes.get(semconv.AGL_READ) if span is not None else None
        if taken is None or taken >= call.answer_bytes:
            return ""
        return f"its reader left after {taken} of {call.answer_bytes} bytes"

    def _with_images(self, joined: JoinedCall) -> JoinedCall:
        where = self._describe(joined.call.id, joined.agent)
        images = images_of(joined.call, where=where)
        return replace(joined, images=images) if images else joined

    def _check_anonymous(self, call: ModelCall) -> None:
        if call.trainable or any(choice.token_ids for choice in call.choices):
            raise CaptureError(
                f"{self._describe(call.id, None)} has tokens but no agent: name the agent with "
                f"agl.agent_scope(name), with trainable=False if it is a judge or a tool"
            )
        self._losses.add("calls_without_agent")

    def _order(self, joined: JoinedCall) -> tuple[int, int, int, str]:
        span = self._spans.structure.get(joined.call.id)
        sequence = span.sequence if span else 0
        lead = sequence if self._by_sequence else joined.call.started_ns
        return (lead, sequence, joined.call.started_ns, joined.call.id)

    def _runs(self, calls: Sequence[JoinedCall]) -> frozenset[tuple[str, str]]:
        runs = {
            (span.agent, span.agent_run_id)
            for span in self._record.spans
            if span.agent_run_id and span.agent
        }
        return frozenset(
            runs | {(call.agent, call.agent_run_id) for call in calls if call.agent_run_id}
        )

    def _seen(self, calls: Sequence[JoinedCall], dropped: Mapping[str, str]) -> frozenset[str]:
        names = {span.agent for span in self._record.spans if span.agent}
        names.update(call.agent for call in calls)
        names.update(dropped.values())
        return frozenset(self._known_as(name) for name in names if name)

    def _known_as(self, agent: str) -> str:
        return self._aliases.get(agent, agent)

    def _framework(self, span: Span | None) -> str:
        return _evidence.framework_of(span, self._spans.by_id)

    def _describe(self, call_id: str, agent: str | None) -> str:
        framework = self._framework(self._spans.structure.get(call_id))
        return _evidence.describe(call_id, agent=agent, framework=framework)


def aliases_of(spans: Iterable[Span]) -> dict[str, str]:
    """Return the aliases of an attempt by agent; a call's record has priority over an event."""
    said: dict[str, str] = {}
    sent: dict[str, str] = {}
    for span in spans:
        if span.call is not None and span.call.alias:
            sent[span.call.agent] = span.call.alias
        elif span.name == semconv.AGL_ALIAS and span.kind is SpanKind.MESSAGE:
            # The agent program may record another event with the same name.
            agent, alias = map(span.attributes.get, (semconv.AGL_AGENT, semconv.AGL_ALIAS))
            if isinstance(agent, str) and isinstance(alias, str):
                said[agent] = alias
    return said | sent


def _numbered(calls: Sequence[JoinedCall]) -> list[JoinedCall]:
    """Number each agent's calls and runs in the given order."""
    counts: dict[str, int] = defaultdict(int)
    runs: dict[str, dict[str, int]] = defaultdict(dict)
    numbered: list[JoinedCall] = []
    for call in calls:
        of_agent = runs[call.agent]
        run_ordinal = of_agent.setdefault(call.agent_run_id, len(of_agent))
        numbered.append(replace(call, ordinal=counts[call.agent], run_ordinal=run_ordinal))
        counts[call.agent] += 1
    return numbered
