"""The filter of training: no call with personal data is learned from, no text with it is read."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from agl_core import semconv
from agl_core.config import validate
from agl_core.interfaces import AdaptedAttempt, AttemptRecord
from agl_core.types import AgentReturn, ModelCall, Trajectory
from agl_privacy._masker import Masker, texts
from agl_privacy._options import PrivacyOptions

FILTERED: Final = "calls_filtered_personal_data"
"""Cause of loss: calls that are not trained on."""
COUNTED: Final = "calls_with_personal_data"
"""Cause of loss: calls that are trained on although they hold personal data."""


class PrivacyFilter:
    """Keeps personal data out of training; implements `agl_core.interfaces.Filter`."""

    def __init__(self, options: PrivacyOptions) -> None:
        """Read the names and load the recognisers.

        Raises:
            ConfigError, MissingExtraError: an option is wrong.
        """
        self._options = options
        self._masker = Masker.shared(options)
        self._uses = {
            "imitation": options.imitation,
            "reflection": options.reflection,
            "events": options.events,
        }

    def cleaned(self, value: Any, use: str) -> Any:
        """Return the value with personal data masked, if the options say so."""
        return self._masker.value(value) if self._uses.get(use, True) else value

    def adapted(self, record: AttemptRecord, adapted: AdaptedAttempt) -> AdaptedAttempt:
        """Leave out, or count, the trained calls that hold personal data."""
        policy = self._options.reinforcement
        trained = {
            call.call_id
            for paths in adapted.trajectories.values()
            for path in paths
            for call in path.calls
        }
        if policy == "off" or not trained:
            return adapted
        held = self._held(record, trained)
        if held:
            adapted.losses.add(FILTERED if policy == "drop" else COUNTED, len(held))
        return without_calls(adapted, held) if held and policy == "drop" else adapted

    def _held(self, record: AttemptRecord, trained: set[str]) -> set[str]:
        known: dict[str, bool] = {}
        """Texts that were read; later calls repeat those of earlier ones."""
        return {
            span.call.id
            for span in record.spans
            if span.call is not None
            and span.call.id in trained
            and (semconv.AGL_MASKED in span.attributes or self._holds(span.call, known))
        }

    def _holds(self, call: ModelCall, known: dict[str, bool]) -> bool:
        for text in texts([call.messages, call.tools, *map(said, call.choices)]):
            if text not in known:
                known[text] = self._masker.holds(text)
            if known[text]:
                return True
        return False


def said(choice: Any) -> list[Any]:
    """Return what a choice holds of texts, without its tokens."""
    return [
        choice.text,
        choice.reasoning,
        choice.tool_calls,
        choice.function_call,
        choice.refusal,
        choice.audio,
    ]


def without_calls(adapted: AdaptedAttempt, left_out: set[str]) -> AdaptedAttempt:
    """Return an adapted attempt in which no trajectory has these calls.

    What the attempt, the agent or its run earned stays the return of the other calls. Rewards for
    one of the calls are left out with it and counted. An agent without another call has no
    trajectory and no return, as if it had made none.
    """
    trajectories: dict[str, list[Trajectory]] = {}
    for agent, paths in adapted.trajectories.items():
        kept = [*filter(None, (_shortened(path, left_out) for path in paths))]
        if kept:
            trajectories[agent] = kept
    aimed = {
        call
        for returned in adapted.returns.values()
        for call in (*returned.calls, *returned.choices)
        if call in left_out
    }
    adapted.losses.add("rewards_of_dropped_calls", len(aimed))
    returns = {
        agent: _unaimed(returned, left_out)
        for agent, returned in adapted.returns.items()
        if agent in trajectories
    }
    return replace(adapted, trajectories=trajectories, returns=returns)


def _shortened(path: Trajectory, left_out: set[str]) -> Trajectory | None:
    """Return a path up to the end of its last call that stays; None if none does."""
    kept = [call for call in path.calls if call.call_id not in left_out]
    if len(kept) == len(path.calls):
        return path
    if not kept:
        return None
    end = len(kept[-1].prompt_ids) + len(kept[-1].response_ids)
    number = {at: kept.index(call) for at, call in enumerate(path.calls) if call in kept}
    index = [number.get(at, -1) for at in path.call_index[:end]]
    logprobs = array("d", path.logprobs[:end])
    for at, call in enumerate(index):
        if call < 0:
            logprobs[at] = 0.0
    change = msgspec.structs.replace
    return change(
        path,
        token_ids=path.token_ids[:end],
        call_index=array("i", index),
        logprobs=logprobs,
        calls=kept,
    )


def _unaimed(returned: AgentReturn, left_out: set[str]) -> AgentReturn:
    return msgspec.structs.replace(
        returned,
        calls={call: value for call, value in returned.calls.items() if call not in left_out},
        choices={call: each for call, each in returned.choices.items() if call not in left_out},
    )


def make_filter(options: Mapping[str, Any]) -> PrivacyFilter:
    """Make the filter of ``[privacy]``.

    Raises:
        ConfigError, MissingExtraError: an option is wrong.
    """
    return PrivacyFilter(validate(PrivacyOptions, dict(options), where="privacy"))
