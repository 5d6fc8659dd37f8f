"""An agent framework in one file, with the hooks of real ones, which only needs httpx.

Tests of agl-core itself use it as their framework: it has agents with tools, plain and streamed
calls, sync and async, listeners called at every start and end, and its own record of which run is
inside which, in a context variable.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol
from uuid import uuid4

import httpx

__all__ = ["Agent", "Endpoint", "EventKind", "Tool"]

EventKind = Literal["agent", "model", "tool"]
_Answer = tuple[dict[str, Any], Mapping[str, int]]
"""A model's message, and its usage."""


class Listener(Protocol):
    """An object that is called at every start and end of a run, in the task that runs it."""

    def started(
        self,
        kind: EventKind,
        name: str,
        *,
        run_id: str,
        parent_run_id: str | None,
        arguments: str,
    ) -> None:
        """Handle the start of a run. Only tools have `arguments`: JSON, as the model wrote them."""
        ...

    def ended(
        self,
        *,
        run_id: str,
        output: str | None,
        error: BaseException | None,
        usage: Mapping[str, int],
    ) -> None:
        """Handle the end of a run. Only models without streaming report `usage` (OpenAI's form)."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a model server."""

    base_url: str
    api_key: str
    timeout_s: float = 600.0

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"}

    @property
    def url(self) -> str:
        return f"{self.base_url}/chat/completions"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that models may call; it takes and returns text."""

    name: str
    function: Callable[[str], str]

    @property
    def schema(self) -> dict[str, Any]:
        properties = {"item": {"type": "string"}}
        parameters = {"type": "object", "properties": properties, "required": ["item"]}
        return {"type": "function", "function": {"name": self.name, "parameters": parameters}}


_RUN: ContextVar[str | None] = ContextVar("toy_run", default=None)


@dataclass
class Agent:
    """An agent that calls its model until it answers without requesting a tool."""

    name: str
    model: str
    endpoint: Endpoint
    system: str = ""
    tools: Sequence[Tool] = ()
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of every request."""

    listeners: ClassVar[list[Listener]] = []

    def run(self, text: str, *, stream: bool = False) -> str:
        with _running("agent", self.name) as run:
            turns = self._turns(text)
            body = next(turns)
            while run.output is None:
                with _running("model", self.model) as call:
                    answer, call.usage = self._send({**body, "stream": stream})
                try:
                    body = turns.send(answer)
                except StopIteration as stop:
                    run.output = stop.value
        return run.output

    async def arun(self, text: str, *, stream: bool = False) -> str:
        with _running("agent", self.name) as run:
            turns = self._turns(text)
            body = next(turns)
            while run.output is None:
                with _running("model", self.model) as call:
                    answer, call.usage = await self._asend({**body, "stream": stream})
                try:
                    body = turns.send(answer)
                except StopIteration as stop:
                    run.output = stop.value
        return run.output

    def _turns(self, text: str) -> Generator[dict[str, Any], dict[str, Any], str]:
        """Yield request bodies and receive the model's messages; return the last one's text."""
        messages: list[dict[str, Any]] = [{"role": "system", "content": self.system}]
        messages.append({"role": "user", "content": text})
        body: dict[str, Any] = {"model": self.model, "messages": messages, **self.extra}
        if self.tools:
            body["tools"] = [tool.schema for tool in self.tools]
        while True:
            message = yield body
            messages.append(message)
            if not message.get("tool_calls"):
                return message["content"]
            messages += [self._use(call) for call in message["tool_calls"]]

    def _use(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        tool = next(tool for tool in self.tools if tool.name == function["name"])
        with _running("tool", tool.name, function["arguments"]) as run:
            run.output = tool.function(json.loads(function["arguments"])["item"])
        return {"role": "tool", "tool_call_id": call["id"], "content": run.output}

    def _send(self, body: dict[str, Any]) -> _Answer:
        endpoint = self.endpoint
        with httpx.Client(headers=endpoint.headers, timeout=endpoint.timeout_s) as client:
            if not body["stream"]:
                response = client.post(endpoint.url, json=body)
                if response.is_server_error:  # is sent again once, as clients do
                    response = client.post(endpoint.url, json=body)
                return _whole(response)
            with client.stream("POST", endpoint.url, json=body) as response:
                response.raise_for_status()
                return _merge(_events(response.iter_lines())), {}

    async def _asend(self, body: dict[str, Any]) -> _Answer:
        endpoint = self.endpoint
        # Other tasks run between the start of a call and its request, as in every real framework.
        await asyncio.sleep(0)
        async with httpx.AsyncClient(
            headers=endpoint.headers, timeout=endpoint.timeout_s
        ) as client:
            if not body["stream"]:
                response = await client.post(endpoint.url, json=body)
                if response.is_server_error:
                    response = await client.post(endpoint.url, json=body)
                return _whole(response)
            async with client.stream("POST", endpoint.url, json=body) as response:
                response.raise_for_status()
                return _merge(_events(await _lines(response.aiter_lines()))), {}


@dataclass
class _Run:
    output: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict[str, int])


@contextmanager
def _running(kind: EventKind, name: str, arguments: str = "") -> Generator[_Run, None, None]:
    run_id, parent = uuid4().hex, _RUN.get()
    listeners = tuple(Agent.listeners)
    for listener in listeners:
        listener.started(kind, name, run_id=run_id, parent_run_id=parent, arguments=arguments)
    token = _RUN.set(run_id)
    run, failure = _Run(), None
    try:
        yield run
    except BaseException as error:
        failure = error
        raise
    finally:
        _RUN.reset(token)
        for listener in listeners:
            listener.ended(run_id=run_id, output=run.output, error=failure, usage=run.usage)


def _whole(response: httpx.Response) -> _Answer:
    answer = response.raise_for_status().json()
    return answer["choices"][0]["message"], answer["usage"]


async def _lines(lines: AsyncIterator[str]) -> Iterator[str]:
    return iter([line async for line in lines])


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def _merge(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Assemble the message from its chunks."""
    content: list[str] = []
    calls: list[dict[str, Any]] = []
    for event in events:
        for choice in event["choices"]:
            content.append(choice["delta"].get("content") or "")
            for piece in choice["delta"].get("tool_calls") or ():
                if piece["index"] == len(calls):
                    function = {"name": "", "arguments": ""}
                    calls.append({"id": piece["id"], "type": "function", "function": function})
                for key, text in piece["function"].items():
                    calls[piece["index"]]["function"][key] += text
    message: dict[str, Any] = {"role": "assistant", "content": "".join(content) or None}
    return {**message, "tool_calls": calls} if calls else message
