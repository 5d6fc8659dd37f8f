"""Where the code that records is entered: by agl-core's hooks, by those of OpenInference."""

from __future__ import annotations

from typing import Any

from clock import Clock


def enter_agl(clock: Clock) -> None:
    """Time what frameworks and clients call into; before any integration is imported.

    That is every callback under `guarded`, every function that a `Patch` puts in another's place
    (the wire's ``send`` among them), and the steps of a `SpanScope`.
    """
    from agl_core import tracing
    from agl_core.tracing import Patch, SpanScope
    from agl_core.tracing import _guard as guard

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
    """Time the functions that OpenInference puts around others; before it is imported."""
    import wrapt

    wrap, kind = wrapt.wrap_function_wrapper, wrapt.FunctionWrapper

    def wrap_timed(*args: Any, **kwargs: Any) -> Any:
        *place, wrapper = [*args, *kwargs.values()]
        return wrap(*place, clock.hands_on(wrapper))

    wrapt.wrap_function_wrapper = wrap_timed
    wrapt.FunctionWrapper = lambda wrapped, wrapper: kind(wrapped, clock.hands_on(wrapper))


def enter_methods(clock: Clock, owner: type[Any], *beginnings: str) -> None:
    """Time the methods of a class whose names begin so, inherited ones too."""
    for name in dir(owner):
        if name.startswith(beginnings) and callable(getattr(owner, name)):
            setattr(owner, name, clock.ours(getattr(owner, name)))
