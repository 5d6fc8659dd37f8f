"""Recognition of servers' errors for prompts that do not fit the model's context."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from agl_core.errors import ContextOverflowError
from agl_core.types.rollout import Failure, FailureKind
from agl_core.types.span import ModelCall

OVERFLOW: Final = "context_length_exceeded"
"""OpenAI's error code."""

_WORDS: Final = re.compile(
    # vLLM (older and newer wordings), SGLang and OpenAI
    r"(?:maximum|model's) (?:context|model) length"
    r"|exceeds? (?:the |your )?(?:model's |available )?context (?:window|size|length)"
    # the code of OpenAI and Azure, the types of llama.cpp and LiteLLM
    rf"|{OVERFLOW}|exceed_context_size_error|ContextWindowExceededError"
    # text-generation-inference
    r"|`inputs` (?:tokens \+ `max_new_tokens` )?must (?:be|have)"
    # Anthropic
    r"|prompt is too long: \d+ tokens",
    re.IGNORECASE,
)


def says_overflow(text: str) -> bool:
    """Return whether an error's text reports a prompt longer than the model's context."""
    return _WORDS.search(text) is not None


def overflowed(calls: Iterable[ModelCall]) -> dict[str, str]:
    """Return trainable agents of which no prompt fit, with the error that they received."""
    answered: set[str] = set()
    refused: dict[str, str] = {}
    for call in calls:
        if call.complete and not call.superseded:
            answered.add(call.agent)
        elif call.trainable and says_overflow(call.error):
            refused.setdefault(call.agent, call.error)
    return {agent: said for agent, said in refused.items() if agent not in answered}


def none_fit(agents: Mapping[str, str]) -> Failure:
    """Return the failure of an attempt that treated the refusal as an answer."""
    agent, said = next(iter(agents.items()))
    kind = ContextOverflowError
    return Failure(
        kind=FailureKind.CONTEXT_OVERFLOW,
        message=f"No prompt of agent {agent!r} fit its model's context ({said}): cut its history "
        f"with agl.PromptBudget, or raise the engine's max_model_len",
        type=f"{kind.__module__}.{kind.__qualname__}",
    )


def failure_by_calls(failure: Failure, calls: Iterable[ModelCall]) -> Failure:
    """Return the agent's failure, as an overflow if the last call's error reports one.

    The agent or its framework may have dropped the text of that error.
    """
    if failure.kind is not FailureKind.AGENT:
        return failure
    kept = (call for call in calls if not call.superseded)
    last = max(kept, key=lambda call: call.ended_ns, default=None)
    if last is None or last.complete or not says_overflow(last.error):
        return failure
    message = f"{last.error} (the agent raised: {failure.message})"
    return replace(failure, kind=FailureKind.CONTEXT_OVERFLOW, message=message)
