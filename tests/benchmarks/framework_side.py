"""A framework's program and its recorder: ``framework_side.py FRAMEWORK WATCHER``.

With agl, a recorded run is an attempt in a process that agl is attached to; for an unrecorded run
it is detached, so that one process measures both. OpenInference's instrumentation is set up once,
as in its documentation, and its spans stay in memory. The recorder's own time is also measured.
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from clock import Clock, usual_us
from constant_model import SCRIPTS, URL, ConstantModel
from entries import enter_agl
from worker import serve

QUESTION = "What does a lamp cost? Say it in one short sentence. " * 10


class Agl:
    """Recording with agl: a run is an attempt."""

    def __init__(self, framework: Any, clock: Clock) -> None:
        from agl_core._builtin import load_plugins
        from agl_core.app.parts import make_integrations

        enter_agl(clock)
        if hasattr(framework, "enter_agl"):
            framework.enter_agl(clock)
        self._integrations = make_integrations(load_plugins())
        self._recorder: Any = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Attach agl while runs are recorded."""
        from agl_core.tracing import attach

        attachment = attach(integrations=self._integrations)
        try:
            yield
        finally:
            attachment.detach()

    def run(self) -> AbstractContextManager[Any]:
        """Activate a new attempt for one run."""
        from attempt import attempt_context

        from agl_core.tracing import enter

        context = attempt_context(URL)
        self._recorder = context.recorder
        return enter(context)

    def spans(self) -> int:
        """Return the number of spans of the last run."""
        return len(self._recorder.drain())


class OpenInference:
    """Recording with OpenInference: a run is a trace."""

    def __init__(self, framework: Any, clock: Clock) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        provider = TracerProvider()
        trace.set_tracer_provider(provider)
        framework.instrument(provider, clock)
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def watching(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def run(self) -> AbstractContextManager[Any]:
        self._exporter.clear()
        return nullcontext()

    def spans(self) -> int:
        return len(self._exporter.get_finished_spans())


WATCHERS: dict[str, Any] = {"agl": Agl, "openinference": OpenInference}


class Side:
    """The actions that the benchmark requests."""

    def __init__(self, framework: str, watcher: str) -> None:
        module = importlib.import_module(f"frameworks.{framework}")
        self._model = ConstantModel()
        self._model.install()
        self._clock = Clock()
        self._watcher = WATCHERS[watcher](module, self._clock)
        self._ask = module.program()

    async def prepare(self) -> dict[str, int]:
        """Run each program a few times; return the number of spans that one run records."""
        counts: dict[str, int] = {}
        with self._watcher.watching():
            for program in [*SCRIPTS] * 3:
                await self._run(program, watched=True)
                counts[program] = self._watcher.spans()
        gc.collect()
        gc.freeze()  # keeps the framework's objects out of later garbage collections
        return counts

    async def measure(self, *, program: str, runs: int, watched: bool) -> dict[str, float]:
        """Return microseconds: of the recorder, and the processor time of the fastest run.

        Two warm-up runs come first.
        """
        gc.collect()
        gc.disable()  # a run would otherwise collect the garbage of another
        with self._watcher.watching() if watched else nullcontext():
            for _ in range(2):
                await self._run(program, watched=watched)
            taken = [await self._run(program, watched=watched) for _ in range(runs)]
        gc.enable()
        whole_us, stretches = zip(*taken, strict=True)
        return {"own": round(usual_us([*stretches]), 1), "whole": min(whole_us)}

    async def _run(self, program: str, *, watched: bool) -> tuple[float, list[float]]:
        """Return the processor time of all threads, and the recorder's stretches."""
        self._model.expect(program)
        self._clock.read()
        with self._watcher.run() if watched else nullcontext():
            begin = time.process_time_ns()
            await self._ask(QUESTION)
            whole_ns = time.process_time_ns() - begin
        return whole_ns / 1e3, self._clock.read()


if __name__ == "__main__":
    measured = Side(*sys.argv[1:])
    serve(prepare=measured.prepare, measure=measured.measure)
