"""Scripted attempts for tests: the spans that both recorders would write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agl_core import semconv
from agl_core.interfaces import AttemptRecord
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Choice,
    Failure,
    Mode,
    ModelCall,
    Policy,
    Reward,
    RewardTarget,
    Rollout,
    Sampling,
    Span,
    SpanKind,
    Task,
    pack_floats,
    pack_ints,
)

__all__ = ["FROZEN", "TRAINED", "CallOptions", "ScriptedAttempt"]

TRAINED = Policy(name="trained", agents=("*",), trainable=True, version=1)
FROZEN = Policy(name="frozen", agents=("@*",), trainable=False)
_STEP_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """How a scripted call differs from the plain one."""

    run: str = ""
    traced: bool = True
    """False: no client span, as for calls identified by their URL."""
    captured: bool = True
    """False: no record of the gateway."""
    framework: str = ""
    parent: str | None = None


_PLAIN = CallOptions()


class ScriptedAttempt:
    """One attempt under construction; tests may change `spans` before they call `record`."""

    def __init__(
        self,
        name: str = "1",
        *,
        task: str = "task",
        expected: Any = None,
        group: str = "group",
        mode: Mode = "train",
    ) -> None:
        """Create an attempt.

        Args:
            name: Distinguishes attempts: rollout ``ro_<name>``, attempt ``at_<name>``.
            task: Id of its task.
            expected: The task's expected answer.
            group: Id of its group.
            mode: Mode of its rollout.
        """
        self.rollout = Rollout(
            id=f"ro_{name}",
            task=Task(id=task, expected=expected),
            run_id="run",
            group_id=group,
            mode=mode,
        )
        self.attempt = Attempt(
            id=f"at_{name}", rollout_id=self.rollout.id, fence=1, worker="worker"
        )
        self.spans: list[Span] = []
        self._clock = 0

    def call(
        self,
        agent: str,
        prompt: Sequence[int],
        *responses: Sequence[int],
        options: CallOptions = _PLAIN,
        **fields: Any,
    ) -> str:
        """Record a model call with one choice per response.

        Args:
            agent: The agent of the call, as both recorders see it.
            prompt: Exact prompt ids.
            responses: Sampled ids of each choice.
            options: Which recorder saw the call.
            fields: Fields of `ModelCall` to replace.

        Returns:
            The call id.
        """
        self._clock += 1
        call = self._model_call(agent, prompt, responses, run=options.run)
        call = msgspec.structs.replace(call, **fields)
        if options.traced:
            self.client_span(agent, call_id=call.id, options=options)
        if options.captured:
            self.gateway_span(call)
        return call.id

    def client_span(
        self, agent: str, *, call_id: str | None, options: CallOptions = _PLAIN, **fields: Any
    ) -> Span:
        """Record only the client's side of a call."""
        framework = {semconv.AGL_FRAMEWORK: options.framework} if options.framework else {}
        span = self._span(
            SpanKind.LLM,
            "chat",
            agent=agent or None,
            agent_run_id=options.run or None,
            parent_id=options.parent,
            attributes=framework,
            call_id=call_id,
        )
        return self._keep(msgspec.structs.replace(span, **fields))

    def gateway_span(self, call: ModelCall) -> Span:
        """Record only the gateway's side of a call."""
        span = self._span(SpanKind.LLM, "chat", agent=call.agent or None, call_id=call.id)
        return self._keep(msgspec.structs.replace(span, sequence=0, call=call))

    def agent(self, name: str, *, run: str = "") -> Span:
        """Record a run of an agent."""
        self._clock += 1
        return self._keep(self._span(SpanKind.AGENT, name, agent=name, agent_run_id=run or None))

    def capture_error(self, message: str, *, call_id: str | None = None) -> Span:
        """Record a failure of a recorder."""
        self._clock += 1
        span = self._span(SpanKind.MESSAGE, semconv.AGL_CAPTURE_ERROR, call_id=call_id)
        return self._keep(msgspec.structs.replace(span, status="error", error=message))

    def reward(self, value: Any, *, channel: str = "main", why: str = "", **target: Any) -> None:
        """Record a reward; `target` takes the fields of `RewardTarget`."""
        self._clock += 1
        reward = Reward(value=value, channel=channel, why=why, target=RewardTarget(**target))
        self._keep(self._span(SpanKind.REWARD, "reward", reward=reward))

    def record(
        self,
        status: AttemptStatus = AttemptStatus.SUCCEEDED,
        *,
        failure: Failure | None = None,
        output: Any = None,
    ) -> AttemptRecord:
        """Return the ended attempt with all its spans."""
        attempt = msgspec.structs.replace(
            self.attempt, status=status, failure=failure, output=output, sealed=True
        )
        return AttemptRecord(rollout=self.rollout, attempt=attempt, spans=list(self.spans))

    def _model_call(
        self, agent: str, prompt: Sequence[int], responses: Sequence[Sequence[int]], *, run: str
    ) -> ModelCall:
        number = len(self.spans)
        return ModelCall(
            id=f"call_{self.attempt.id}_{number}",
            rollout_id=self.rollout.id,
            attempt_id=self.attempt.id,
            agent=agent,
            agent_run_id=run,
            sampling=Sampling(n=max(len(responses), 1)),
            prompt_token_ids=pack_ints(prompt),
            choices=[
                Choice(
                    index=index,
                    token_ids=pack_ints(ids),
                    logprobs=pack_floats(
                        [-0.01 * (at + 1) - 0.001 * number for at in range(len(ids))]
                    ),
                    finish_reason="stop",
                )
                for index, ids in enumerate(responses)
            ],
            logprobs_mode="processed",
            policy=TRAINED.name,
            policy_version=1,
            complete=True,
            started_ns=self._clock * _STEP_NS,
            ended_ns=self._clock * _STEP_NS + 1,
        )

    def _span(self, kind: SpanKind, name: str, **fields: Any) -> Span:
        return Span(
            id=f"sp_{self.attempt.id}_{len(self.spans)}",
            rollout_id=self.rollout.id,
            attempt_id=self.attempt.id,
            kind=kind,
            name=name,
            sequence=self._clock,
            start_ns=self._clock * _STEP_NS,
            end_ns=self._clock * _STEP_NS + 1,
            status="ok",
            **fields,
        )

    def _keep(self, span: Span) -> Span:
        self.spans.append(span)
        return span
