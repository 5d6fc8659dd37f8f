"""Timed entry points of the recording code: agl-core's hooks, and OpenInference's."""

from __future__ import annotations

from typing import Any

from clock import Clock


def enter_agl(clock: Clock) -> None:
    """Time the entry points of frameworks and clients; call it before importing integrations.

    These are the callbacks under `guarded`, the functions that a `Patch` installs (including the
    wire's ``send``), and the steps of a `SpanScope`.
    """
    from agl_core import tracing
    from agl_core.tracing import Patch, SpanScope
    from agl_core.tracing import _wrapping as guard

    guarded, prepare, run = guard.guarded, Patch.__init__, SpanScope.run

    def timed(framework: str = "") -> Any:
        decorate = guarded(framework)
        return lambda callback: clock.ours(decorate(callback))

    def prepare_timed(patch: Any, library: Any, owner: Any, name: str, wrap: Any, **rest: Any):
        def wrap_timed(original: Any, live: Any) -> Any:
            return clock.ours(wrap(clock.theirs(original), live))

        prepare(patch, library, owner, name, wrap_timed, **rest)

    async def run_timed(span: Any, step: Any) -> Any:
        return await run(span, clock.theirs(step))

    tracing.guarded = guard.guarded = timed  # type: ignore[assignment]
    Patch.__init__ = prepare_timed
    SpanScope.run = clock.ours(run_timed)


def enter_wrapt(clock: Clock) -> None:
    """Time the wrappers that OpenInference installs; call it before importing OpenInference."""
    import wrapt

    wrap, kind = wrapt.wrap_function_wrapper, wrapt.FunctionWrapper

    def wrap_timed(*args: Any, **kwargs: Any) -> Any:
        *place, wrapper = [*args, *kwargs.values()]
        return wrap(*place, clock.hands_on(wrapper))

    wrapt.wrap_function_wrapper = wrap_timed
    wrapt.FunctionWrapper = lambda wrapped, wrapper: kind(wrapped, clock.hands_on(wrapper))


def enter_methods(clock: Clock, owner: type[Any], *beginnings: str) -> None:
    """Time the methods of a class whose names start with `beginnings`, including inherited ones."""
    for name in dir(owner):
        if name.startswith(beginnings) and callable(getattr(owner, name)):
            setattr(owner, name, clock.ours(getattr(owner, name)))
