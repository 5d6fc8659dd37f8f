"""Conversion of messages to prompt tokens with the tokenizer's chat template."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from jinja2.exceptions import TemplateError

from agl_core.errors import ConfigError

_CACHED_PROMPTS = 256
_PRIVATE_USE = range(0xE000, 0xF900)
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look it up",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
    },
}

Message = Mapping[str, Any]


class RenderError(ValueError):
    """Messages that the chat template cannot render."""


class ChatTemplate:
    """Renders messages and tools as the token ids of the prompt.

    Only the template produces control tokens. If a user, tool or system message contains the text
    of a control token, the text is divided after its first character and both parts are encoded
    separately, so that it stays text. Assistant messages may contain markers that are not special
    tokens, such as ``<tool_call>``. Everything else is encoded exactly as transformers does it.
    """

    def __init__(self, tokenizer: Any, *, source: str) -> None:
        """Wrap a tokenizer.

        Args:
            source: Directory or hub name of the tokenizer, for error messages.

        Raises:
            ConfigError: the tokenizer has no chat template.
        """
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"Tokenizer of {source!r} has no chat template: put a 'chat_template.jinja' beside "
                f"its 'tokenizer_config.json', or choose a chat model"
            )
        self._tokenizer = tokenizer
        self._written = json.dumps(tokenizer.chat_template)
        added = [(token.content, token.special) for token in _added_tokens(tokenizer)]
        special = [text for text, is_special in added if is_special]
        structural = [text for text, _ in added if json.dumps(text)[1:-1] in self._written]
        self._special = _any_of(special)
        self._markers = _any_of([*special, *structural])
        self._cache: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """Return the prompt's token ids, including the start of the assistant's turn.

        Args:
            options: Additional template variables.

        Raises:
            PromptError: a message cannot be rendered; the message names it or the reason.
        """
        key = msgspec.json.encode([messages, tools, options])
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        ids = self._encode(messages, tools, options or {})
        self._cache[key] = ids
        if len(self._cache) > _CACHED_PROMPTS:
            self._cache.popitem(last=False)
        return ids

    def encode_raw(self, prompt: str, *, special_tokens: bool) -> tuple[int, ...]:
        """Return the token ids of a whole prompt, in which control tokens are what they say.

        Args:
            special_tokens: Whether the tokenizer adds what it begins texts with.

        Raises:
            RenderError: the text has no tokens.
        """
        ids = token_ids(self._tokenizer(prompt, add_special_tokens=special_tokens))
        if not ids:
            raise RenderError("messages: the prompt has no tokens")
        return tuple(ids)

    def shows_tools(self) -> bool:
        """Return whether tools change the prompt; True if the test prompt cannot be rendered."""
        asked = [{"role": "user", "content": "?"}]
        try:
            return self.encode(asked, tools=[_TOOL]) != self.encode(asked)
        except RenderError:
            return True

    def _encode(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> tuple[int, ...]:
        plain = [self._message(index, message) for index, message in enumerate(messages)]
        breaker = _unused_character(plain, tools)
        guarded = [self._guard(message, breaker) for message in plain]
        guarded_tools = _map_text(list(tools), self._breaking(self._markers, breaker))
        text = self._render(guarded, guarded_tools, options)
        ids = [token for piece in text.split(breaker) for token in self._ids(piece)]
        if not ids:
            raise RenderError("messages: the chat template renders them as an empty prompt")
        return tuple(ids)

    def _message(self, index: int, message: Message) -> dict[str, Any]:
        """Return the message in the form templates expect: text content, arguments as mappings."""
        plain = dict(message)
        role = plain.get("role")
        if not isinstance(role, str):
            raise RenderError(f"messages[{index}].role: a string is needed, got {role!r}")
        if role == "developer" and "developer" not in self._written:
            plain["role"] = "system"
        elif role == "function":
            plain["role"] = "tool"
        self._say_otherwise(index, plain)
        plain["content"] = self._content(index, plain.get("content"))
        calls = plain.get("tool_calls")
        if calls:
            plain["tool_calls"] = [_tool_call(call) for call in calls]
        else:
            plain.pop("tool_calls", None)
        return plain

    def _say_otherwise(self, index: int, message: dict[str, Any]) -> None:
        """Move the fields of an answer that templates ignore to fields that they render.

        Raises:
            PromptError: the field has no equivalent, so the prompt would lack it.
        """
        function = message.pop("function_call", None)
        if function is not None and not message.get("tool_calls"):
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                raise RenderError(
                    f"messages[{index}].function_call: an object with a name is needed, got "
                    f"{function!r:.200}"
                )
            if "tool_calls" not in self._written:
                raise RenderError(
                    f"messages[{index}].function_call: the model's chat template renders no calls: "
                    f"choose a model that was trained with tools"
                )
            message["tool_calls"] = [{"type": "function", "function": dict(function)}]
        if isinstance(message.get("refusal"), str) and not message.get("content"):
            message["content"] = message["refusal"]
        if message.get("audio") is not None and not message.get("content"):
            raise RenderError(
                f"messages[{index}].audio: this model does not accept audio: send the transcript as content"
            )

    def _content(self, index: int, content: Any) -> Any:
        """Return the content for the template: text, unless a subclass supports other parts."""
        return _text(index, content)

    def _guard(self, message: dict[str, Any], breaker: str) -> dict[str, Any]:
        own = message["role"] == "assistant"
        break_up = self._breaking(self._special if own else self._markers, breaker)
        return {
            key: value if key == "role" else _map_text(value, break_up)
            for key, value in message.items()
        }

    def _breaking(self, markers: re.Pattern[str], breaker: str) -> Callable[[str], str]:
        return lambda text: markers.sub(lambda match: f"{match[0][0]}{breaker}{match[0][1:]}", text)

    def _render(
        self, messages: list[dict[str, Any]], tools: list[Any], options: Mapping[str, Any]
    ) -> str:
        try:
            return self._apply(messages, tools, options)
        except (TemplateError, TypeError, ValueError, AttributeError, KeyError) as error:
            wrapped = [_wrap_arguments(message) for message in messages]
            if wrapped == messages:
                raise RenderError(
                    f"messages: the model's chat template refuses: {error}"
                ) from error
        try:
            return self._apply(wrapped, tools, options)
        except (TemplateError, TypeError, ValueError, AttributeError, KeyError) as error:
            raise RenderError(f"messages: the model's chat template refuses: {error}") from error

    def _apply(
        self, messages: list[dict[str, Any]], tools: list[Any], options: Mapping[str, Any]
    ) -> str:
        return self._tokenizer.apply_chat_template(
            messages,
            tools=tools or None,
            tokenize=False,
            **{"add_generation_prompt": True, **options},
        )

    def _ids(self, text: str) -> list[int]:
        # The template writes the beginning-of-sequence token if the model needs one.
        return token_ids(self._tokenizer(text, add_special_tokens=False)) if text else []


def token_ids(encoded: Any) -> list[int]:
    """Return the ids of one text from a tokenizer's result: a list, nested list or mapping."""
    if isinstance(encoded, Mapping) or hasattr(encoded, "input_ids"):
        encoded = encoded["input_ids"]
    if len(encoded) == 1 and not isinstance(encoded[0], int):
        encoded = encoded[0]
    return [int(token) for token in encoded]


def _added_tokens(tokenizer: Any) -> list[Any]:
    tokens = tokenizer.added_tokens_decoder.values()
    return [token for token in tokens if len(token.content.strip()) > 1]


def _any_of(markers: Sequence[str]) -> re.Pattern[str]:
    ordered = sorted(set(markers), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _unused_character(*values: Any) -> str:
    text = "".join(json.dumps(value, ensure_ascii=False, default=str) for value in values)
    return next(chr(code) for code in _PRIVATE_USE if chr(code) not in text)


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_text(key, change): _map_text(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_text(item, change) for item in value]
    return value


def _text(index: int, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RenderError(f"messages[{index}].content: text is needed, got {content!r}")
    return "".join(_part(index, part) for part in content)


def _part(index: int, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    text = part.get(_TEXT_PARTS[kind]) if kind in _TEXT_PARTS else None
    if not isinstance(text, str):
        raise RenderError(
            f"messages[{index}].content: this model cannot be shown a part of type {kind!r}"
        )
    return text


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call with its arguments as a mapping; keep a string that is not a JSON object."""
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        return dict(call)
    arguments = function.get("arguments")
    changed = {**function, "arguments": _arguments(arguments)}
    return {**call, "function": changed} if "function" in call else changed


def _arguments(arguments: Any) -> Any:
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _wrap_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Wrap string arguments in a mapping, for templates that require mappings."""
    if "tool_calls" not in message:
        return message
    calls: list[Any] = []
    for call in message["tool_calls"]:
        function = call.get("function", call)
        if isinstance(function.get("arguments"), str):
            function = {**function, "arguments": {"arguments": function["arguments"]}}
        calls.append({**call, "function": function} if "function" in call else function)
    return {**message, "tool_calls": calls}
