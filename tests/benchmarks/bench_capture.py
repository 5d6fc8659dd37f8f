"""Cost of recording one model call in the agent's process: LangChain's handler and the wire.

No request is sent: the callbacks and the preparation of a request are called as LangChain and httpx
call them, inside a graph node of a running attempt. The handler is compared with LangChain's own
in-memory recorder of runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import harness
import httpx
from agl_langchain import AglCallbackHandler
from agl_langchain._integration import LangChainIntegration
from attempt import attempt_context
from langchain_core.outputs import LLMResult
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler

from agl_core.tracing import enter
from agl_core.tracing._wire import Wire

CALLS_PER_ATTEMPT = 20
_URL = "http://127.0.0.1:8000/v1"
_BODY = {
    "model": "policy",
    "messages": [
        {"role": "system", "content": "You are a shop assistant."},
        {"role": "user", "content": "Say what the item costs in one short sentence. " * 20},
    ],
}
_ANSWER = LLMResult(generations=[[]])


class Program:
    """A graph with one node that calls a model repeatedly."""

    def __init__(self) -> None:
        self._client = httpx.Client()
        collector = partial(RunCollectorCallbackHandler, _schema_format="original+chat")
        self._handlers = {"agl": AglCallbackHandler, "run_collector": collector}
        self._wire = Wire([LangChainIntegration()])
        self._none = lambda *_, **__: None

    def requests(self) -> list[httpx.Request]:
        """Return requests, which are created before the measurement."""
        url = f"{_URL}/chat/completions"
        return [
            self._client.build_request("POST", url, json=_BODY) for _ in range(CALLS_PER_ATTEMPT)
        ]

    def attempt_s(self, *, handler: str | None, wire: bool) -> float:
        """Return the processor time, in seconds, to record one attempt's calls."""
        requests = self.requests()
        hooks: Any = self._handlers[handler]() if handler else None
        prepare: Callable[..., Any] = self._wire.prepare if wire else self._none
        root, node = uuid4(), uuid4()
        names = {"langgraph_node": "writer", "langgraph_checkpoint_ns": "writer:1"}
        with enter(attempt_context(_URL)):
            if hooks is not None:
                hooks.on_chain_start({}, {}, run_id=root, name="graph")
                hooks.on_chain_start(
                    {}, {}, run_id=node, parent_run_id=root, name="writer", metadata=names
                )
            begin = time.process_time()
            for request in requests:
                run_id = uuid4()
                if hooks is not None:
                    hooks.on_chat_model_start(
                        {"name": "ChatOpenAI"},
                        [[]],
                        run_id=run_id,
                        parent_run_id=node,
                        metadata=names,
                        invocation_params={"model": "policy"},
                    )
                prepare(self._client, request)
                if hooks is not None:
                    hooks.on_llm_end(_ANSWER, run_id=run_id)
            return time.process_time() - begin


SIDES = {
    "handler_and_wire": {"handler": "agl", "wire": True},
    "handler": {"handler": "agl", "wire": False},
    "run_collector": {"handler": "run_collector", "wire": False},
    "wire": {"handler": None, "wire": True},
    "neither": {"handler": None, "wire": False},
}
ATTEMPTS_PER_ROUND = 20


def run(*, rounds: int) -> None:
    """Measure and write the report."""
    report = {"machine": harness.machine(), "unit": "microseconds of processor time per model call"}
    program = Program()
    samples: harness.Samples = {side: [] for side in SIDES}
    for number in range(rounds * ATTEMPTS_PER_ROUND):
        for side in harness.in_turn(list(SIDES), number):
            seconds = program.attempt_s(**SIDES[side])
            samples[side].append(round(1e6 * seconds / CALLS_PER_ATTEMPT, 2))
    medians = harness.medians(samples)
    for side, microseconds in medians.items():
        harness.say(f"capture    {side:16s} {microseconds:6.1f} us")
    added = {side: medians[side] - medians["neither"] for side in SIDES if side != "neither"}
    ratios = {"handler": added["handler"] / added["run_collector"]}
    found = {"samples": samples, "medians": medians, "added_us": added, "ratios": ratios}
    harness.write("capture", report | found)
