"""How servers say that a prompt does not fit the model's context."""

from __future__ import annotations

import re
from typing import Final

OVERFLOW: Final = "context_length_exceeded"
"""OpenAI's code for it."""

_WORDS: Final = re.compile(
    # vLLM, with its older and newer wordings, SGLang and OpenAI
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
    """Whether an error's text says that a prompt is longer than the model's context."""
    return _WORDS.search(text) is not None
