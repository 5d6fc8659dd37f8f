"""Replies of the fake server, their tokens, and the wire forms of both."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from agl_core.interfaces import RAW_PROMPT
from agl_testing.vocabulary import EOS_ID, encode, token_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeReply:
    """One choice that a script asks for."""

    text: str = ""
    reasoning: str = ""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """``{"name", "arguments"}`` each, `arguments` as JSON text or as a mapping; ``"id"`` optional."""
    finish_reason: str | None = None
    """None: ``tool_calls`` when there are any, ``stop`` otherwise."""


Script = Callable[[dict[str, Any]], "str | FakeReply"]
"""Maps the request's body to a reply; called once per choice."""


@dataclass(slots=True)
class AnsweredChoice:
    """One sampled choice; `token_ids` decode to `raw_text`."""

    index: int
    token_ids: list[int]
    logprobs: list[float]
    text: str
    reasoning: str
    tool_calls: list[dict[str, Any]]
    finish_reason: str
    raw_text: str
    """Reasoning, text and tool calls as the model would write them."""


@dataclass(slots=True)
class Answered:
    """One request and the server's answer: the truth to compare captures with."""

    id: str
    """Response id."""
    body: dict[str, Any]
    headers: dict[str, str]
    """Names in lower case."""
    prompt_token_ids: list[int] = field(default_factory=list[int])
    choices: list[AnsweredChoice] = field(default_factory=list[AnsweredChoice])
    streamed: bool = False
    status: int = 200
    done: bool = False
    """Whether the answer ended, in full or because the client disconnected."""
    closed_early: bool = False
    """Whether the client disconnected before the last byte."""

    @property
    def usage(self) -> dict[str, int]:
        prompt = len(self.prompt_token_ids)
        completion = sum(len(choice.token_ids) for choice in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }


def prompt_ids(body: Mapping[str, Any], *, random: Random | None) -> list[int]:
    """Render messages and tools with a chat template of this module, plus a generation prompt.

    In the plain spelling, the prompt of a turn extends the previous turn's prompt and answer.
    """
    if body.get("chat_template") == RAW_PROMPT:
        return encode(_message_text(body["messages"][0]), random=random)
    ids: list[int] = []
    if body.get("tools"):
        ids += encode(f"<tools>{json.dumps(body['tools'])}</tools>", random=random)
    for message in body.get("messages", ()):
        ids += encode(f"<{message.get('role')}>", random=random)
        ids += encode(_message_text(message), random=random)
        ids.append(EOS_ID)
    return ids + encode("<assistant>", random=random)


def _message_text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(part.get("text", "")) for part in content)
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return content + "".join(_call_text(call["name"], call["arguments"]) for call in calls)


def _call_text(name: str, arguments: str) -> str:
    return f"<tool_call>{name}{arguments}</tool_call>"


def sample(
    reply: str | FakeReply, *, index: int, random: Random, stable: bool, max_tokens: int | None
) -> AnsweredChoice:
    """Turn a scripted reply into tokens with one log-probability each.

    A reply longer than `max_tokens` is cut there, without an end-of-sequence token.
    """
    if isinstance(reply, str):
        reply = FakeReply(text=reply)
    calls = [_wire_call(call, random) for call in reply.tool_calls]
    raw = f"<think>{reply.reasoning}</think>" if reply.reasoning else ""
    raw += reply.text
    raw += "".join(_call_text(c["function"]["name"], c["function"]["arguments"]) for c in calls)
    ids = [*encode(raw, random=None if stable else random), EOS_ID]
    text, reasoning, finish = reply.text, reply.reasoning, reply.finish_reason
    if max_tokens is not None and len(ids) > max_tokens:
        ids, calls, reasoning, finish = ids[:max_tokens], [], "", "length"
        text = raw = b"".join(map(token_bytes, ids)).decode("utf-8", errors="ignore")
    return AnsweredChoice(
        index=index,
        token_ids=ids,
        logprobs=[round(-3 * random.random() - 1e-3, 6) for _ in ids],
        text=text,
        reasoning=reasoning,
        tool_calls=calls,
        finish_reason=finish or ("tool_calls" if calls else "stop"),
        raw_text=raw,
    )


def _wire_call(call: Mapping[str, Any], random: Random) -> dict[str, Any]:
    arguments = call["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return {
        "id": call.get("id") or f"call_{random.getrandbits(48):012x}",
        "type": "function",
        "function": {"name": call["name"], "arguments": arguments},
    }


def message(choice: AnsweredChoice) -> dict[str, Any]:
    """Return the ``message`` of a plain answer."""
    content = None if choice.tool_calls and not choice.text else choice.text
    body: dict[str, Any] = {"role": "assistant", "content": content}
    if choice.reasoning:
        body["reasoning"] = choice.reasoning
    if choice.tool_calls:
        body["tool_calls"] = choice.tool_calls
    return body


def logprob_entries(choice: AnsweredChoice, alternatives: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ``logprobs`` of a choice: one entry per token, including the end of sequence."""
    entries: list[dict[str, Any]] = []
    for token_id, logprob in zip(choice.token_ids, choice.logprobs, strict=True):
        data = token_bytes(token_id)
        entries.append(
            {
                "token": data.decode("utf-8", errors="replace"),
                "logprob": logprob,
                "bytes": list(data),
                "top_logprobs": alternatives,
            }
        )
    return {"content": entries}


@dataclass(frozen=True, slots=True)
class Delta:
    """One streamed token: its addition to the message and its position."""

    delta: dict[str, Any]
    position: int
    last: bool


def deltas(choice: AnsweredChoice) -> Iterator[Delta]:
    """Yield one delta per token of a choice; text appears once its UTF-8 is complete.

    Tokens of a tool call's markup have empty deltas until the call is complete, as with a
    server-side tool parser.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    plain = not choice.tool_calls and not choice.reasoning
    parts = _structure(choice)
    for position, token_id in enumerate(choice.token_ids):
        last = position == len(choice.token_ids) - 1
        if plain:
            whole = last and choice.finish_reason == "stop"
            text = decoder.decode(token_bytes(token_id), final=whole)
            yield Delta({"content": text} if text else {}, position, last)
        elif last:
            yield Delta(_merged(parts), position, last)
        else:
            yield Delta(parts.pop(0) if parts else {}, position, last)


def _structure(choice: AnsweredChoice) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if choice.reasoning:
        parts.append({"reasoning": choice.reasoning})
    if choice.text:
        parts.append({"content": choice.text})
    for index, call in enumerate(choice.tool_calls):
        function = call["function"]
        head = {**call, "index": index, "function": {**function, "arguments": ""}}
        parts.append({"tool_calls": [head]})
        half = len(function["arguments"]) // 2
        for piece in (function["arguments"][:half], function["arguments"][half:]):
            if piece:
                delta = {"index": index, "function": {"arguments": piece}}
                parts.append({"tool_calls": [delta]})
    return parts


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            merged[key] = merged[key] + value if key in merged else value
    return merged
