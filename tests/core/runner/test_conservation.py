"""Model requests that programs begin are those on record and those counted: nothing is lost silently.

Random programs run through the real runner and gateway, with real clients, against a scripted
backend and a second address. What they begin is counted apart from the product, in subclasses of
the clients and beside the calls; the other side is what records, joins and losses say.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import httpx2
import pytest
from agl_endpoints import HttpBackend
from agl_http_clients._integration import HttpClients
from agl_responses._request import read
from agl_testing.fake_openai import FakeOpenAI
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st

import agl_core as agl
from agl_core import semconv
from agl_core.adapters import AgentSelector, TrajectoryAdapter, join
from agl_core.clocks import new_id
from agl_core.errors import CaptureError, ConfigError
from agl_core.gateway import GatewayOptions, GatewayServer
from agl_core.interfaces import AttemptRecord
from agl_core.runner import Runner, RunnerOptions
from agl_core.store._memory import MemoryStore
from agl_core.tracing import attach
from agl_core.types import Limits, Losses, Policy, Rollout, Task
from agl_core.types.rollout import CAPTURE

openai = pytest.importorskip("openai")
requests = pytest.importorskip("requests")

EXAMPLES = 60
PROGRAMS = 4
"""Attempts of an example, at the same time."""
TRAINED = Policy(name="trained", agents=("writer",), trainable=True, model="weights")
FROZEN = Policy(name="frozen", agents=("*",), model="weights")
LEARNS = {"agents": ["writer"], "policies": [["writer", True], ["*", False]]}
MODELS = ("/chat/completions", "/completions", "/responses", "/messages")
CAUSES = (
    "superseded_tries",
    "calls_refused",
    "calls_incomplete",
    "calls_unsent",
)
"""Of one attempt, in its join: a request each."""
KINDS = ("sent_elsewhere", "refused_elsewhere", "calls_without_identity")
"""The others, with agent and address behind them: a request each."""


@dataclass(frozen=True)
class Step:
    """One thing that a program does."""

    client: str
    agent: str | None
    trainable: bool
    elsewhere: bool
    path: str
    behaviour: str
    context: bool
    """Whether a thread has the context of its attempt."""
    turns: int
    """Of the loop, before the request is cancelled."""


steps = st.builds(
    Step,
    client=st.sampled_from(["sdk", "async sdk", "async sdk", "requests", "urllib", "aiohttp"]),
    agent=st.sampled_from(["writer", "writer", "planner", "@selector", None]),
    trainable=st.sampled_from([True, True, False]),
    elsewhere=st.booleans(),
    path=st.sampled_from(["/chat/completions", "/chat/completions", "/responses", "/messages"]),
    behaviour=st.sampled_from(["ask", "ask", "fail", "time out", "read", "leave", "cancel"]),
    context=st.sampled_from([True, True, False]),
    turns=st.integers(0, 60),
)
programs = st.lists(
    st.lists(st.one_of(steps, st.lists(steps, min_size=2, max_size=3)), min_size=1, max_size=5),
    min_size=1,
    max_size=PROGRAMS,
)
"""For each attempt its steps in order; those in a list run at the same time."""


ONE = Step("sdk", "planner", True, False, "/chat/completions", "ask", True, 0)
CANCELLED = replace(ONE, client="async sdk", behaviour="cancel")
LOSING: dict[str, list[Any]] = {
    "superseded_tries": [replace(ONE, behaviour="fail")],
    "calls_refused": [replace(ONE, behaviour="fail")],
    "calls_incomplete": [replace(ONE, behaviour="leave")],
    "calls_unsent": [replace(CANCELLED, behaviour="hold")],
    "sent_elsewhere": [replace(ONE, elsewhere=True)],
    "refused_elsewhere": [replace(ONE, client="requests", agent="writer", elsewhere=True)],
    "calls_without_identity": [replace(ONE, client="requests")],
}
"""By cause, a program with requests that are counted as such."""


HELD: ContextVar[asyncio.Event | None] = ContextVar("held", default=None)
"""Set by a request that is held before it leaves, where a program wants that."""


async def hold(request: Any) -> None:
    if (held := HELD.get()) is not None:
        held.set()
        await asyncio.Event().wait()


class Begun:
    """What programs begin, by attempt; "" where a request names none."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, *, identified: bool) -> None:
        attempt = ""
        with contextlib.suppress(ConfigError):
            attempt = agl.current().attempt.id if identified else ""
        with self._lock:
            self.counts[attempt] += 1


class World:
    """Runner and gateway between programs and two model servers."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.begun = Begun()
        self.outcomes: Counter[str] = Counter()
        self.programs: dict[str, list[Any]] = {}
        self.stop = asyncio.Event()

    async def start(self) -> None:
        enter = self.stack.enter_async_context
        self.store = MemoryStore()
        await self.store.open()
        self.stack.push_async_callback(self.store.close)
        self.backend, self.provider = await enter(FakeOpenAI()), await enter(FakeOpenAI())
        self.backend.before_send = self.provider.before_send = before_send
        backend = HttpBackend(self.backend.base_url, model="weights")
        self.stack.push_async_callback(backend.close)
        self.gateway = GatewayServer(
            self.store, GatewayOptions(), dialects={"POST /responses": read}
        )
        for policy in (TRAINED, FROZEN):
            await self.gateway.route(policy, backend)
        await self.gateway.start()
        self.stack.push_async_callback(self.gateway.stop)
        self._make_clients()
        self.stack.callback(attach(integrations=[HttpClients()]).detach)
        options = RunnerOptions(concurrency=PROGRAMS)
        self.runner = Runner(self.store, self.gateway, self.run, None, options)
        serving = asyncio.create_task(self.runner.run(self.stop))
        self.stack.push_async_callback(self._end, serving)

    def _make_clients(self) -> None:
        begun = self.begun

        class Client(httpx2.Client):
            def send(self, request: Any, **options: Any) -> Any:
                begun.add(identified=True)
                return super().send(request, **options)

        class AsyncClient(httpx2.AsyncClient):
            async def send(self, request: Any, **options: Any) -> Any:
                begun.add(identified=True)
                return await super().send(request, **options)

        self.http = Client()
        self.async_http = AsyncClient(event_hooks={"request": [hold]})
        self.stack.callback(self.http.close)
        self.stack.push_async_callback(self.async_http.aclose)

    async def _end(self, serving: asyncio.Task[None]) -> None:
        self.stop.set()
        await serving

    async def run(self, task: Task) -> str:
        """The agent of every attempt: its own program, whose errors it swallows."""
        for step in self.programs[task.id]:
            together = step if isinstance(step, list) else [step]
            await asyncio.gather(*(self._take(one) for one in together))
        agl.emit_reward(1.0)
        return "done"

    async def _take(self, step: Step) -> None:
        scope = contextlib.nullcontext()
        if step.agent is not None:
            scope = agl.agent_scope(step.agent, trainable=step.trainable)
        with scope, contextlib.suppress(Exception):
            await self._ask(step)

    async def _ask(self, step: Step) -> None:
        llm = agl.current().llm
        base = self.provider.base_url if step.elsewhere else llm.base_url
        if step.client == "async sdk":
            await self._ask_async(step, base, llm.api_key)
        elif step.client == "aiohttp":
            self.begun.add(identified=step.elsewhere)
            async with (
                aiohttp.ClientSession(headers=bearer(llm.api_key)) as session,
                session.post(base + step.path, json=body_of(step, {})) as answer,
            ):
                await answer.read()
        elif step.context:
            await asyncio.to_thread(self._ask_sync, step, base, llm.api_key)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._ask_sync, step, base, llm.api_key)

    def _ask_sync(self, step: Step, base: str, key: str) -> None:
        url = base + step.path
        if step.client == "requests":
            self.begun.add(identified=step.elsewhere)
            requests.post(url, json=body_of(step, {}), headers=bearer(key), timeout=60)
        elif step.client == "urllib":
            self.begun.add(identified=step.elsewhere)
            data = json.dumps(body_of(step, {})).encode()
            asked = urllib.request.Request(url, data, bearer(key))
            with urllib.request.urlopen(asked) as answer:
                answer.read()
        else:
            client = openai.OpenAI(
                base_url=base, api_key=key, http_client=self.http, **patience(step)
            )
            answer = client.post(step.path, **request_of(step, openai.Stream))
            for count, _ in enumerate(answer if streams(step) else ()):
                if step.behaviour == "leave" and count:
                    answer.close()
                    break

    async def _ask_async(self, step: Step, base: str, key: str) -> None:
        client = openai.AsyncOpenAI(
            base_url=base, api_key=key, http_client=self.async_http, **patience(step)
        )
        held = asyncio.Event()
        token = HELD.set(held if step.behaviour == "hold" else None)
        asking = asyncio.create_task(client.post(step.path, **request_of(step, openai.AsyncStream)))
        HELD.reset(token)
        if step.behaviour == "hold":
            await held.wait()
            asking.cancel()
        if step.behaviour == "cancel":
            for _ in range(step.turns):
                await asyncio.sleep(0)
            asking.cancel()
        await asyncio.wait([asking])
        if asking.cancelled():
            return
        answer = asking.result()
        count = 0
        if streams(step):
            async for _ in answer:
                count += 1
                if step.behaviour == "leave" and count == 2:
                    await answer.close()
                    break

    async def play(self, given: list[list[Any]]) -> int:
        """Run the programs of one example; compare both sides; gives the number of requests."""
        before = Counter(self._unowned())
        self.begun.counts.clear()
        self.programs = {str(number): each for number, each in enumerate(given)}
        rollouts = [
            Rollout(
                id=new_id("ro"),
                task=Task(id=name),
                run_id="run",
                limits=Limits(timeout_s=600.0, lease_s=600.0),
                metadata={CAPTURE: LEARNS},
            )
            for name in self.programs
        ]
        await self.store.enqueue(rollouts)
        ids = [rollout.id for rollout in rollouts]
        ended = await self.store.wait(ids)
        spans = await self.store.spans(ids)
        for rollout in ended:
            attempt = rollout.attempt
            assert attempt is not None
            assert attempt.failure is None, attempt.failure
            mine = [span for span in spans if span.attempt_id == attempt.id]
            record = AttemptRecord(rollout=rollout, attempt=attempt, spans=mine)
            program = self.programs[rollout.task.id]
            counts = accounted(record)
            assert counts.total() == self.begun.counts[attempt.id], (program, counts)
            self.outcomes += counts
            only_trained_agents_are_refused(record)
        unowned = Counter(self._unowned()) - before
        assert unowned.total() == self.begun.counts[""], unowned
        self.outcomes += Counter(kind_of(unowned))
        return self.begun.counts.total()

    def _unowned(self) -> dict[str, int]:
        """Requests of no attempt: refused by the gateway, or seen on their way elsewhere."""
        lost = {**self.gateway.losses.counts, **self.runner.losses.counts}
        causes = ("calls_without_identity", "sent_elsewhere_to_")
        return {cause: count for cause, count in lost.items() if cause.startswith(causes)}


def accounted(record: AttemptRecord) -> Counter[str]:
    """Recorded calls and every counted cause of one attempt."""
    nobody = AgentSelector([])
    joined = join(record, agents=nobody, policies=[TRAINED, FROZEN])
    counts = Counter({cause: joined.losses.counts.get(cause, 0) for cause in CAUSES})
    counts["recorded"] = len(joined.calls)
    for span in record.spans:
        counts.update(kind_of(span.attributes.get(semconv.AGL_LOST, {})))
    return counts


def kind_of(lost: dict[str, int]) -> dict[str, int]:
    """Losses by cause, without agent and address."""
    kinds: Counter[str] = Counter()
    for cause, count in lost.items():
        kinds[next(kind for kind in KINDS if cause.startswith(kind))] += count
    return kinds


def only_trained_agents_are_refused(record: AttemptRecord) -> None:
    adapter, refused = TrajectoryAdapter(["writer"], policies=[TRAINED, FROZEN]), "'writer'"
    try:
        adapter.adapt(record)
    except CaptureError as error:
        refused = str(error)
    assert "'writer'" in refused


async def before_send(answer: Any, _: int) -> None:
    """What the last message asks of the model servers."""
    said = answer.body["messages"][-1]["content"]
    if "fail" in said:
        raise ConnectionError
    if "time out" in said:
        await asyncio.Event().wait()


def streams(step: Step) -> bool:
    return step.behaviour in ("read", "leave")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", "content-type": "application/json"}


def patience(step: Step) -> dict[str, Any]:
    return {"max_retries": 1, "timeout": 0.05 if step.behaviour == "time out" else 60.0}


def body_of(step: Step, more: dict[str, Any]) -> dict[str, Any]:
    # A raw client asks for what it can wait for.
    said = step.behaviour if step.client in ("sdk", "async sdk") else "ask"
    if step.path == "/responses":
        return {"model": "m", "input": said, **more}
    return {"model": "m", "messages": [{"role": "user", "content": said}], **more}


def request_of(step: Step, stream: type[Any]) -> dict[str, Any]:
    if not streams(step):
        return {"body": body_of(step, {}), "cast_to": object}
    body = body_of(step, {"stream": True})
    return {"body": body, "cast_to": object, "stream": True, "stream_cls": stream[object]}


@contextlib.contextmanager
def playing() -> Generator[tuple[World, Callable[[list[list[Any]]], int]]]:
    """A world, and what runs the programs of one example in it."""
    loop = asyncio.new_event_loop()
    world = World()
    try:
        loop.run_until_complete(world.start())
        yield world, lambda given: loop.run_until_complete(world.play(given))
    finally:
        loop.run_until_complete(world.stack.aclose())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.0)


# Streams that a program leaves are garbage. Where that is collected in one thread while the event
# loop of another closes their async generators, CPython reports "async generator already executing".
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning"
)
def test_requests_begun_are_on_record_or_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """C2, C3, C4, C9: conservation, for each attempt and for what no attempt is known of."""
    attempts = begun = 0
    with playing() as (world, play):

        @seed(11)
        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @example(list(LOSING.values()))
        @given(programs)
        def check(given: list[list[Any]]) -> None:
            nonlocal attempts, begun
            begun += play(given)
            attempts += len(given)

        check()
    with capsys.disabled():
        told = ", ".join(f"{kind} {count}" for kind, count in sorted(world.outcomes.items()))
        sys.stdout.write(f"conservation: {attempts} attempts, {begun} requests: {told}\n")
    assert begun == world.outcomes.total() > attempts > EXAMPLES
    assert {kind for kind, count in world.outcomes.items() if count} == {
        *CAUSES,
        *KINDS,
        "recorded",
    }


@pytest.mark.parametrize("cause", LOSING)
def test_a_cause_that_is_not_counted_breaks_the_balance(
    monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """C2, C3, C4, C9: the negative control: the comparison can fail, for each cause alone."""
    program = [LOSING[cause]]
    add = Losses.add

    def forgetful(losses: Losses, name: str, n: int = 1) -> None:
        if not name.startswith(cause):
            add(losses, name, n)

    with playing() as (world, play):
        play(program)
        assert world.outcomes[cause]
        monkeypatch.setattr(Losses, "add", forgetful)
        with pytest.raises(AssertionError, match=r"assert \d+ == \d+"):
            play(program)
        monkeypatch.undo()
