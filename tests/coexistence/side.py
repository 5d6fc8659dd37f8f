"""A framework's program, watched by agl and by a tool of the user's.

``python -m tests.coexistence.side FRAMEWORK [TOOL [ORDER]]``, from the root of the repository; the
tool ``all`` is all of them at once. A tool is installed in a process once and for good, so each
combination has a child of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agl_testing._captured import check_identity, check_tokens, triplets
from agl_testing.bench import Bench, Played
from agl_testing.scenario import ANSWER, EXPECTED, PLANNER, WRITER, Job, skeleton

from agl_core.tracing import attach
from agl_core.types import SpanKind
from tests.coexistence.endpoint import Endpoint, Seen
from tests.coexistence.programs import FORMS, contract_of
from tests.coexistence.tools import TOOLS, Tool, install

MODEL_CALLS: Final = {"llm", "generation", "chat", "openai.chat.completion"}
"""Kinds and names of spans."""
WITHOUT_MODEL_CALLS: Final = {
    ("autogen", "langsmith"),
    ("autogen", "langfuse"),
    ("crewai", "agentops"),
}
"""AutoGen's own spans are of agents and tools, AgentOps' of CrewAI of tasks and agents."""
WITHOUT_ASYNC: Final = {("crewai", "agentops")}
"""AgentOps wraps CrewAI's sync functions alone; of the others it has what other tools record."""
WITHOUT_BESIDE_OTHERS: Final = {*WITHOUT_MODEL_CALLS, ("autogen", "agentops")}
"""Beside the other tools AgentOps makes no spans of AutoGen's client, with agl or without."""
ORDERS: Final = ("theirs_first", "ours_first")
ALL: Final = "all"
_ASYNC: Final = ("arun", "astream")

Recorded = dict[str, dict[str, list[Seen]]]
"""Spans by form of the program and by tool."""


class Wire:
    """What leaves the process: the call ids of each request to a gateway, and no other machine."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.elsewhere: list[str] = []
        for name in ("httpx", "httpx2"):
            library = importlib.import_module(name)
            self._watch(library.HTTPTransport, "handle_request")
            self._watch(library.AsyncHTTPTransport, "handle_async_request")
        resolve = socket.getaddrinfo

        def local(host: Any, *args: Any, **options: Any) -> Any:
            if host not in (None, "127.0.0.1", "localhost", "::1", b"127.0.0.1"):
                self.elsewhere.append(str(host))
                raise socket.gaierror(f"{host}: nothing but loopback here")
            return resolve(host, *args, **options)

        socket.getaddrinfo = local

    def take(self) -> list[list[str]]:
        """The call ids of every model request since the last time."""
        calls, self.calls = self.calls, []
        return [ids for path, ids in calls if path.endswith("/chat/completions")]

    def _watch(self, transport: Any, name: str) -> None:
        original = getattr(transport, name)

        def handle(sender: Any, request: Any) -> Any:
            self.calls.append((request.url.path, request.headers.get_list("x-agl-call")))
            return original(sender, request)

        setattr(transport, name, handle)


@dataclass(frozen=True)
class Watcher:
    """A tool, and the server that takes what it sends."""

    endpoint: Endpoint
    tool: Tool

    @classmethod
    def of(cls, name: str, *, alone: bool) -> Watcher:
        endpoint = Endpoint()
        return cls(endpoint, TOOLS[name](endpoint.url, alone=alone))


class Side:
    """Plays the program in all its forms, with and without agl, and compares."""

    def __init__(self, framework: str, tool: str, bench: Bench, wire: Wire) -> None:
        self._suite = contract_of(framework)()
        self._program = self._suite.program()
        self._framework = framework
        self._programs = sys.modules[type(self._program).__module__]
        tools = TOOLS if tool == ALL else (tool,)
        self._watchers = {name: Watcher.of(name, alone=tool != ALL) for name in tools}
        self._bench = bench
        self._wire = wire
        self._forms = [form for form in FORMS if form not in self._program.lacks]

    async def theirs_first(self) -> None:
        self._install()
        alone = await self._alone()
        before = self._suite.framework_state()
        attachment = self._attach()
        both = await self._both()
        attachment.detach()
        assert self._suite.framework_state() == before, "detaching left something"
        self._compare(both, alone)
        self._compare(await self._alone(), alone)

    async def ours_first(self) -> None:
        attachment = self._attach()
        self._install()
        both = await self._both()
        attachment.detach()
        self._compare(both, await self._alone())

    def _attach(self) -> Any:
        return attach(integrations=[self._suite.integration()])

    def _install(self) -> None:
        tools = [watcher.tool for watcher in self._watchers.values()]
        install(tools, self._framework, self._programs)

    async def _both(self) -> Recorded:
        """Play in rollouts and check what agl recorded; gives what the tools did."""
        seen: Recorded = {}
        for form in self._forms:
            self._bench.fake.log.clear()
            played = await self._bench.one(getattr(self._program, form))
            self._check(form, played)
            seen[form] = self._seen()
        return seen

    def _check(self, form: str, played: Played) -> None:
        if played.error is not None:
            raise played.error
        assert played.output == ANSWER, played.output
        assert skeleton(played.spans) == EXPECTED, form
        check_tokens(played, self._bench.fake.log)
        spans = check_identity(played)
        speakers = [each.agent for each in triplets(played, "*")]
        assert speakers == [PLANNER, PLANNER, WRITER], speakers
        sent = self._wire.take()
        ids = [each for request in sent for each in request]
        # The gateway's own requests go through aiohttp.
        assert [len(request) for request in sent] == [1, 1, 1], sent
        assert set(ids) == set(spans), "a request went out as another call"
        assert len(self._bench.fake.log) == 3

    async def _alone(self) -> Recorded:
        """Play in rollouts that agl is not attached to; gives what the tools recorded."""
        seen: Recorded = {}
        direct = Job(self._bench.fake.base_url, "key")
        for form in self._forms:
            program = getattr(self._program, form)
            if inspect.iscoroutinefunction(program):
                played = await self._bench.one(_async(program, direct))
            else:
                played = await self._bench.one(lambda _, program=program: program(direct))
            if played.error is not None:
                raise played.error
            assert played.output == ANSWER, played.output
            assert not played.calls, "agl is still there"
            assert all(span.kind is not SpanKind.LLM for span in played.spans), "agl is still there"
            assert self._wire.take() == [[], [], []], "agl is still there"
            seen[form] = self._seen()
        return seen

    def _seen(self) -> dict[str, list[Seen]]:
        for watcher in self._watchers.values():
            watcher.tool.flush()
        return {name: watcher.endpoint.take() for name, watcher in self._watchers.items()}

    def _compare(self, found: Recorded, alone: Recorded) -> None:
        """The user's tools record the same with agl and without it."""
        for form in self._forms:
            for tool in self._watchers:
                self._compare_spans(form, tool, found[form], alone[form])

    def _compare_spans(
        self,
        form: str,
        tool: str,
        found: Mapping[str, Sequence[Seen]],
        alone: Mapping[str, Sequence[Seen]],
    ) -> None:
        now, without = _shape(found[tool]), _shape(alone[tool])
        assert now == without, (form, tool, now - without, without - now)
        alone_here = len(self._watchers) == 1
        if alone_here and form in _ASYNC and (self._framework, tool) in WITHOUT_ASYNC:
            assert not without, (form, tool, without)
            return
        assert without, (form, tool, "recorded nothing")
        calls = sum(often for span, often in without.items() if MODEL_CALLS & {*span[:2]})
        lacking = WITHOUT_MODEL_CALLS if alone_here else WITHOUT_BESIDE_OTHERS
        if (self._framework, tool) not in lacking:
            # Each is there more than once where framework and client are watched.
            assert calls, (form, tool, without)
            assert calls % 3 == 0, (form, tool, without)


def _async(program: Any, job: Job) -> Any:
    async def play(_: Job) -> Any:
        return await program(job)

    return play


def _shape(seen: Sequence[Seen]) -> Counter[tuple[str, str, str]]:
    """Kind, name and parent's name of every span, however often."""
    names = {span.id: span.name for span in seen}
    return Counter((span.kind, span.name, names.get(span.parent or "", "-")) for span in seen)


async def play(framework: str, tool: str, order: str) -> None:
    """One combination, in a process that it has for itself."""
    wire = Wire()
    async with Bench.open() as bench:
        side = Side(framework, tool, bench, wire)
        await getattr(side, order)()
    assert not wire.elsewhere, wire.elsewhere


def play_in_a_child(framework: str, tool: str, order: str) -> bool:
    """Whether it went well. Children share what this process has imported, which takes seconds."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        failed = 1
        try:
            asyncio.run(play(framework, tool, order))
            failed = 0
        except Exception:  # noqa: BLE001  whatever it is, the parent goes on
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(failed)
    _, status = os.waitpid(child, 0)
    print(f"{framework} {tool} {order}: {'ok' if status == 0 else 'failed'}")  # noqa: T201
    return status == 0


def main(framework: str, tools: Sequence[str] = (), sequences: Sequence[str] = ()) -> bool:
    """Play all combinations and tell whether all went well."""
    contract_of(framework)
    played = [
        play_in_a_child(framework, tool, order)
        for tool in tools or (*TOOLS, ALL)
        for order in sequences or ORDERS
    ]
    return all(played)


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1], sys.argv[2:3], sys.argv[3:4]))
