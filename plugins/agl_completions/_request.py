"""A request of legacy completions, translated to a chat completion request.

The prompt is the only message, and the request brings a chat template that is nothing but this
message. So the model reads the prompt as it was written, in any backend that takes a template from
a request.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agl_completions._answer import CompletionBuilder
from agl_core.interfaces import RAW_PROMPT, Problem, read_body

_IN_CHAT: Final = "use /v1/chat/completions, which has this field"
_REFUSED: Final = {
    "best_of": "every answer is recorded, none is chosen: leave it out",
    "echo": "put the prompt before the answer in the program",
    "logprobs": _IN_CHAT,
    "n": _IN_CHAT,
    "return_token_ids": _IN_CHAT,
    "suffix": "models of chat have no text after the answer: leave it out",
}
"""Fields that are refused unless their value is neutral, with the fix."""
_NEUTRAL: Final[dict[str, Any]] = {"best_of": 1, "n": 1}
_MAX_TOKENS: Final = 16
"""OpenAI's default for completions."""

_fields: Final = msgspec.json.Decoder(dict[str, Any])


def read(body: bytes) -> tuple[bytes, CompletionBuilder]:
    """Read a request of the dialect; see `agl_core.interfaces.Dialect`.

    Raises:
        Problem: 400, it is not a completions request or asks for something that cannot be served;
            the error names the field and the fix.
    """
    given = read_body(body, _fields.decode, what="completions request")
    fields = {name: value for name, value in given.items() if value is not None}
    for name, fix in _REFUSED.items():
        value = fields.pop(name, False)
        if value is not False and value not in ("", _NEUTRAL.get(name)):
            raise _refuse(name, value, fix)
    prompt = _text(fields.pop("prompt", None))
    chat = {
        "max_tokens": _MAX_TOKENS,
        **fields,
        "messages": [{"role": "user", "content": prompt}],
        "chat_template": RAW_PROMPT,
        "add_generation_prompt": False,
        "add_special_tokens": True,
    }
    usage = fields.get("stream_options")
    shown = isinstance(usage, dict) and bool(usage.get("include_usage"))  # pyright: ignore[reportUnknownMemberType]
    return msgspec.json.encode(chat), CompletionBuilder(str(fields.get("model", "")), usage=shown)


def _text(prompt: Any) -> str:
    match prompt:
        case str() | [str()]:
            text = prompt if isinstance(prompt, str) else prompt[0]
        case _:
            raise _refuse("prompt", prompt, "send one text; each further text is a request")
    if not text:
        raise _refuse("prompt", prompt, "send a text that is not empty")
    return text


def _refuse(name: str, value: Any, fix: str) -> Problem:
    message = f"{name}: {value!r:.200} cannot be served: {fix}"
    return Problem(400, "unsupported_field", message, param=name)
