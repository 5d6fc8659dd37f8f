"""Layers of stores: texts are masked before they are stored, or when others read them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from agl_stores import StoreLayer

from agl_core import semconv
from agl_core.interfaces import StoreLifecycle
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Failure,
    Ingest,
    ModelCall,
    Rollout,
    RolloutQuery,
    Span,
)
from agl_privacy._masker import Masker
from agl_privacy._options import PrivacyOptions

_ATTEMPTS: Final = 1_000
"""Attempts under way whose texts are remembered."""
_TEXTS: Final = ("text", "reasoning", "tool_calls", "function_call", "refusal", "audio")


_NAMES: Final = {
    semconv.GEN_AI_AGENT_NAME,
    semconv.GEN_AI_TOOL_CALL_ID,
    semconv.AGL_AGENT,
    semconv.AGL_ALIAS,
    semconv.AGL_AGENT_RUN,
    semconv.AGL_HANDOFF_FROM,
    semconv.AGL_HANDOFF_TO,
    semconv.AGL_REQUEST_DIGEST,
}
"""Attributes by which records are joined."""


class MaskingLayer(StoreLayer):
    """Masks what spans, outputs and failures say. Token ids, inputs of tasks and prompts stay.

    Until an attempt ends, the process that recorded a span reads it as it was, so that rewards are
    given for what the agent said.
    """

    def __init__(self, store: StoreLifecycle, masker: Masker) -> None:
        """Mask what goes into this store."""
        super().__init__(store)
        self._masker = masker
        self._originals: OrderedDict[str, dict[str, Span]] = OrderedDict()

    async def add_spans(self, spans: Sequence[Span]) -> Ingest:
        return await self.inner.add_spans([self._masked(span) for span in spans])

    async def finish(
        self,
        attempt_id: str,
        *,
        status: AttemptStatus,
        spans: Sequence[Span] = (),
        failure: Failure | None = None,
        output: Any = None,
    ) -> Attempt:
        mask = self._masker.value
        attempt = await self.inner.finish(
            attempt_id,
            status=status,
            spans=[self._masked(span) for span in spans],
            failure=_masked_failure(failure, mask),
            output=mask(output),
        )
        self._originals.pop(attempt_id, None)
        return attempt

    async def cancel(self, rollout_ids: Sequence[str], *, reason: str) -> list[Rollout]:
        return await self.inner.cancel(rollout_ids, reason=self._masker.text(reason))

    async def spans(
        self, rollout_ids: Sequence[str], *, attempt_id: str | None = None
    ) -> list[Span]:
        found = await self.inner.spans(rollout_ids, attempt_id=attempt_id)
        originals = self._originals.get(attempt_id or "", {})
        return [originals.get(span.id, span) for span in found]

    def _masked(self, span: Span) -> Span:
        masked = masked_span(span, self._masker)
        if masked is not span:
            self._originals.setdefault(span.attempt_id, {})[span.id] = span
            while len(self._originals) > _ATTEMPTS:
                self._originals.popitem(last=False)
        return masked


class MaskedView(StoreLayer):
    """A store as it may be read by others: no text with personal data, and no token that says it."""

    def __init__(self, store: StoreLifecycle, masker: Masker) -> None:
        """Mask what is read from this store."""
        super().__init__(store)
        self._masker = masker

    async def spans(
        self, rollout_ids: Sequence[str], *, attempt_id: str | None = None
    ) -> list[Span]:
        found = await self.inner.spans(rollout_ids, attempt_id=attempt_id)
        return [_without_tokens(masked_span(span, self._masker)) for span in found]

    async def rollouts(self, query: RolloutQuery) -> list[Rollout]:
        return [self._rollout(each) for each in await self.inner.rollouts(query)]

    def _rollout(self, rollout: Rollout) -> Rollout:
        mask, change = self._masker.value, msgspec.structs.replace
        task = rollout.task
        return change(
            rollout,
            task=change(
                task,
                id=mask(task.id),
                input=mask(task.input),
                expected=mask(task.expected),
                metadata=mask(task.metadata),
            ),
            group_id=mask(rollout.group_id),
            metadata=mask(rollout.metadata),
            attempts=[
                change(each, output=mask(each.output), failure=_masked_failure(each.failure, mask))
                for each in rollout.attempts
            ],
        )


def masked_span(span: Span, masker: Masker) -> Span:
    """Return a span with masked texts and `semconv.AGL_MASKED`; the span itself without any."""
    mask, change = masker.value, msgspec.structs.replace
    call, reward = span.call, span.reward
    attributes = {
        name: value if name in _NAMES else mask(value) for name, value in span.attributes.items()
    }
    masked = change(
        span,
        name=span.name if span.name == span.agent else mask(span.name),
        error=mask(span.error),
        attributes=attributes,
        call=call and _masked_call(call, masker),
        reward=reward and change(reward, why=mask(reward.why)),
    )
    if _plain(masked) == _plain(span):
        return span
    return change(masked, attributes={**attributes, semconv.AGL_MASKED: True})


def _plain(span: Span) -> Any:
    return msgspec.to_builtins(span, enc_hook=repr)


def _without_tokens(span: Span) -> Span:
    if span.call is None or semconv.AGL_MASKED not in span.attributes:
        return span
    change = msgspec.structs.replace
    choices = [change(each, token_ids=[], logprobs=[]) for each in span.call.choices]
    return change(span, call=change(span.call, prompt_token_ids=[], choices=choices))


def _masked_failure(failure: Failure | None, mask: Callable[[Any], Any]) -> Failure | None:
    return failure and msgspec.structs.replace(
        failure, message=mask(failure.message), traceback=mask(failure.traceback)
    )


def _masked_call(call: ModelCall, masker: Masker) -> ModelCall:
    change = msgspec.structs.replace
    choices = [
        change(each, **{name: masker.value(getattr(each, name)) for name in _TEXTS})
        for each in call.choices
    ]
    return change(
        call,
        messages=masker.value(call.messages),
        tools=masker.value(call.tools),
        error=masker.value(call.error),
        choices=choices,
    )


def make_layer(options: PrivacyOptions, store: StoreLifecycle) -> StoreLifecycle:
    """Return the store, in a layer that masks if the options ask for it."""
    return MaskingLayer(store, Masker.shared(options)) if options.store else store
