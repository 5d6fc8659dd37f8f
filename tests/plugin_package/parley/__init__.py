"""Parley: speakers that answer, and use tools on the way.

::

    shop = Speaker("shop", model="gpt-4o-mini", base_url=url, api_key=key)
    shop.say("What is the price of tea?")
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import httpx

__all__ = ["Around", "Speaker", "Step", "Tool"]

Message = dict[str, Any]


@dataclass(slots=True)
class Step:
    """One action of a speaker."""

    kind: Literal["speech", "model", "tool"]
    name: str
    arguments: str | None = None
    """Of a tool: JSON, as the model wrote them."""
    result: str | None = None
    """Set when the step ends."""


Around = Callable[[Step], AbstractContextManager[object]]
"""Runs around a step, in the task that makes it."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; it takes an item and gives text."""

    name: str
    function: Callable[[str], str]

    @property
    def schema(self) -> Mapping[str, Any]:
        item = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
        return {"type": "function", "function": {"name": self.name, "parameters": item}}


@dataclass
class Speaker:
    """Asks its model until it answers without requesting a tool."""

    name: str
    model: str
    base_url: str
    api_key: str
    system: str = ""
    tools: Sequence[Tool] = ()

    around: ClassVar[list[Around]] = []
    """Called around every step: the first one is the outermost."""

    def say(self, text: str) -> str:
        with _step("speech", self.name) as speech:
            messages = self._opening(text)
            with httpx.Client(**self._connection()) as client:
                while speech.result is None:
                    with _step("model", self.model):
                        reply = client.post(self._url, json=self._body(messages))
                    speech.result = self._take(reply, messages)
        return speech.result

    async def asay(self, text: str) -> str:
        with _step("speech", self.name) as speech:
            messages = self._opening(text)
            async with httpx.AsyncClient(**self._connection()) as client:
                while speech.result is None:
                    with _step("model", self.model):
                        await asyncio.sleep(0)
                        reply = await client.post(self._url, json=self._body(messages))
                    speech.result = self._take(reply, messages)
        return speech.result

    @property
    def _url(self) -> str:
        return f"{self.base_url}/chat/completions"

    def _connection(self) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.api_key}"}
        return {"headers": headers, "timeout": 60, "verify": _certificates()}

    def _opening(self, text: str) -> list[Message]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": text}]

    def _body(self, messages: list[Message]) -> Mapping[str, Any]:
        tools = {"tools": [tool.schema for tool in self.tools]} if self.tools else {}
        return {"model": self.model, "messages": messages, **tools}

    def _take(self, reply: httpx.Response, messages: list[Message]) -> str | None:
        """Return the answer; None if the model requested tools, whose results are now messages."""
        message = reply.raise_for_status().json()["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            function = call["function"]
            tool = next(tool for tool in self.tools if tool.name == function["name"])
            with _step("tool", tool.name, function["arguments"]) as step:
                step.result = tool.function(json.loads(function["arguments"])["item"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": step.result})
        return None


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    """Read once: it takes longer than a short answer."""
    return ssl.create_default_context()


@contextmanager
def _step(
    kind: Literal["speech", "model", "tool"], name: str, arguments: str | None = None
) -> Generator[Step, None, None]:
    step = Step(kind, name, arguments)
    with ExitStack() as stack:
        for around in tuple(Speaker.around):
            stack.enter_context(around(step))
        yield step
