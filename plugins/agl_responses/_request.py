"""A request of OpenAI Responses, translated to a chat completion request."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from agl_core.interfaces import read_body
from agl_responses._answer import ResponseBuilder
from agl_responses._conversation import messages_of, refuse

__all__ = ["ResponsesRequest", "read"]

_WHOLE_INPUT: Final = (
    "the gateway keeps no conversations: send all of it as 'input', each response's 'output' items "
    "after the items they answer"
)
_IN_CHAT: Final = "use /v1/chat/completions, which has this field"
_REFUSED: Final = {
    "previous_response_id": _WHOLE_INPUT,
    "conversation": _WHOLE_INPUT,
    "prompt": "stored prompts are not here: send 'instructions' and 'input'",
    "background": "answers are not kept for later: leave it out and wait, or stream",
    "context_management": "nothing is compacted here: shorten the conversation in the agent",
    "moderation": "nothing is moderated here: leave it out",
    "n": _IN_CHAT,
    "logprobs": _IN_CHAT,
    "top_logprobs": _IN_CHAT,
    "return_token_ids": _IN_CHAT,
}
"""Fields that are refused unless their value is in `_SAYS_NOTHING`, with the fix."""
_SAYS_NOTHING: Final[tuple[Any, ...]] = (None, False, 0)
_SERVED: Final = frozenset(
    {"input", "instructions", "tools", "tool_choice", "text", "reasoning", "max_output_tokens"}
)
"""Fields that a chat completion expresses differently."""
_IGNORED: Final = frozenset(
    {
        "include",
        "max_tool_calls",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "truncation",
    }
)
"""Fields that do not affect sampling."""
_fields: Final = msgspec.json.Decoder(dict[str, Any])
_LOGPROBS: Final = "message.output_text.logprobs"


class ResponsesRequest:
    """A Responses request as the equivalent chat completion request."""

    def __init__(self, body: bytes) -> None:
        """Translate a body.

        Fields that neither API knows are passed to the backend, as in chat completions.

        Raises:
            Problem: 400, it is not a Responses request or asks for something that cannot be served;
                the error names the field and the fix.
        """
        self.fields = {
            name: v
            for name, v in read_body(body, _fields.decode, what="Responses request").items()
            if v is not None
        }
        _check(self.fields)
        self.chat = msgspec.json.encode(self._chat())

    def _chat(self) -> dict[str, Any]:
        fields = self.fields
        known = _SERVED | _IGNORED | _REFUSED.keys()
        chat = {name: value for name, value in fields.items() if name not in known}
        chat["messages"] = messages_of(fields.get("instructions"), fields.get("input"))
        if tools := _rows("tools", fields.get("tools", [])):
            chat["tools"] = [_tool(index, tool) for index, tool in enumerate(tools)]
            if "tool_choice" in fields:
                chat["tool_choice"] = _tool_choice(fields["tool_choice"])
        else:
            chat.pop("parallel_tool_calls", None)
        if "max_output_tokens" in fields:
            chat["max_completion_tokens"] = fields["max_output_tokens"]
        if effort := _mapping("reasoning", fields.get("reasoning", {})).get("effort"):
            chat["reasoning_effort"] = effort
        text = _mapping("text", fields.get("text", {}))
        if text.get("verbosity"):
            chat["verbosity"] = text["verbosity"]
        if form := _response_format(_mapping("text.format", text.get("format") or {})):
            chat["response_format"] = form
        if fields.get("stream"):
            chat["stream_options"] = {"include_usage": True}
        return chat


def read(body: bytes) -> tuple[bytes, ResponseBuilder]:
    """Read a request of the dialect; see `agl_core.interfaces.Dialect`.

    Raises:
        Problem: 400, see `ResponsesRequest`.
    """
    asked = ResponsesRequest(body)
    return asked.chat, ResponseBuilder(asked.fields)


def _check(fields: dict[str, Any]) -> None:
    for name, fix in _REFUSED.items():
        value = fields.get(name)
        if value in _SAYS_NOTHING or (name == "n" and value == 1):
            continue
        raise refuse(name, value, fix)
    if fields.get("truncation", "disabled") != "disabled":
        fix = "nothing is cut here without being seen: shorten the conversation in the agent"
        raise refuse("truncation", fields["truncation"], fix)
    if _LOGPROBS in _rows("include", fields.get("include", [])):
        raise refuse("include", _LOGPROBS, "use /v1/chat/completions with logprobs")


def _rows(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise refuse(name, value, "send a list", code="invalid_value")
    return cast("list[Any]", value)


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse(name, value, "send an object", code="invalid_value")
    return cast("dict[str, Any]", value)


def _tool(index: int, tool: Any) -> dict[str, Any]:
    fields = _mapping(f"tools[{index}]", tool)
    kind = fields.get("type")
    if kind != "function":
        fix = (
            "hosted tools run at OpenAI, not here: give the agent a tool of type 'function' that "
            "does it"
        )
        raise refuse(f"tools[{index}].type", kind, fix)
    kept = ("name", "description", "parameters", "strict")
    function = {name: fields[name] for name in kept if fields.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    fields = _mapping("tool_choice", choice)
    if fields.get("type") != "function":
        fix = "use 'auto', 'none', 'required' or the name of a function"
        raise refuse("tool_choice.type", fields.get("type"), fix)
    return {"type": "function", "function": {"name": fields.get("name")}}


def _response_format(form: dict[str, Any]) -> dict[str, Any] | None:
    kind = form.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": kind}
    if kind != "json_schema":
        raise refuse("text.format.type", kind, "use 'text', 'json_object' or 'json_schema'")
    kept = ("name", "description", "schema", "strict")
    return {"type": kind, kind: {name: form[name] for name in kept if form.get(name) is not None}}
