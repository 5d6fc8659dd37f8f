"""A request of Anthropic Messages, translated to a chat completion request."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agl_anthropic._answer import MessageBuilder
from agl_anthropic._conversation import mapping, messages_of, refuse, rows, string
from agl_core.interfaces import read_body

_REFUSED: Final = {
    "container": "code runs at Anthropic, not here: give the agent a tool that runs it",
    "context_management": "nothing is edited here: shorten the conversation in the agent",
    "mcp_servers": "the agent calls its MCP servers itself: give their tools in 'tools'",
}
"""Fields that are refused unless they are empty, with the fix."""
_SERVED: Final = frozenset(
    {
        "max_tokens",
        "messages",
        "output_config",
        "output_format",
        "stop_sequences",
        "system",
        "thinking",
        "tool_choice",
        "tools",
    }
)
"""Fields that a chat completion expresses differently."""
_IGNORED: Final = frozenset(
    {
        "betas",
        "cache_control",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""Fields that do not affect sampling."""
_fields: Final = msgspec.json.Decoder(dict[str, Any])
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


def read(body: bytes) -> tuple[bytes, MessageBuilder]:
    """Read a request of the dialect; see `agl_core.interfaces.Dialect`.

    Raises:
        Problem: 400, it is not a Messages request or asks for something that cannot be served; the
            error names the field and the fix.
    """
    fields = read_fields(body)
    limit = fields.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise refuse("max_tokens", limit, "send the greatest number of tokens to sample")
    chat = {**chat_of(fields), "max_completion_tokens": limit}
    if fields.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(chat), MessageBuilder(str(fields.get("model", "")))


def read_fields(body: bytes) -> dict[str, Any]:
    """Return a request's fields that are not null.

    Raises:
        Problem: 400, it is no JSON object.
    """
    fields = read_body(body, _fields.decode, what="Messages request")
    return {name: value for name, value in fields.items() if value is not None}


def chat_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the chat completion request without its limit of tokens.

    Fields that neither API knows are passed to the backend, as in chat completions.

    Args:
        fields: Fields of a Messages request that are not null.
    """
    for name, fix in _REFUSED.items():
        if fields.get(name):
            raise refuse(name, fields[name], fix)
    known = _SERVED | _IGNORED | _REFUSED.keys()
    chat = {name: value for name, value in fields.items() if name not in known}
    chat["messages"] = messages_of(fields.get("system"), fields.get("messages"))
    if tools := rows("tools", fields.get("tools", [])):
        chat["tools"] = [_tool(index, tool) for index, tool in enumerate(tools)]
        if "tool_choice" in fields:
            _choose(chat, mapping("tool_choice", fields["tool_choice"]))
    if stop := rows("stop_sequences", fields.get("stop_sequences", [])):
        chat["stop"] = stop
    if "thinking" in fields:
        on = _thinks(mapping("thinking", fields["thinking"]))
        options = mapping("chat_template_kwargs", fields.get("chat_template_kwargs", {}))
        chat["chat_template_kwargs"] = {"enable_thinking": on, **options}
    config = mapping("output_config", fields.get("output_config", {}))
    form = mapping("output_format", fields.get("output_format") or config.get("format") or {})
    if form:
        chat["response_format"] = _response_format(form)
    if config.get("effort"):
        chat["reasoning_effort"] = config["effort"]
    return chat


def _tool(index: int, tool: Any) -> dict[str, Any]:
    where = f"tools[{index}]"
    fields = mapping(where, tool)
    kind = fields.get("type", "custom")
    if kind != "custom":
        fix = "its form is known at Anthropic alone: give the agent a tool with an 'input_schema'"
        raise refuse(f"{where}.type", kind, fix)
    function: dict[str, Any] = {"name": string(where, fields, "name")}
    if fields.get("description") is not None:
        function["description"] = fields["description"]
    function["parameters"] = mapping(f"{where}.input_schema", fields.get("input_schema"))
    if fields.get("strict") is not None:
        function["strict"] = fields["strict"]
    return {"type": "function", "function": function}


def _choose(chat: dict[str, Any], choice: dict[str, Any]) -> None:
    kind = choice.get("type")
    if kind == "tool":
        name = string("tool_choice", choice, "name")
        chat["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif kind in _CHOICES:
        chat["tool_choice"] = _CHOICES[kind]
    else:
        raise refuse("tool_choice.type", kind, f"use one of {', '.join(_CHOICES)}, tool")
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False


def _thinks(thinking: dict[str, Any]) -> bool:
    kind = thinking.get("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise refuse("thinking.type", kind, "use 'enabled', 'adaptive' or 'disabled'")
    return kind != "disabled"


def _response_format(form: dict[str, Any]) -> dict[str, Any]:
    if form.get("type") != "json_schema":
        raise refuse("output_format.type", form.get("type"), "use 'json_schema'")
    schema = mapping("output_format.schema", form.get("schema"))
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
