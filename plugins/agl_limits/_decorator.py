"""Limit how often a function is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from agl_limits._limiter import Limiter, RateLimitError, RateVerdict

P = ParamSpec("P")
T = TypeVar("T")


def rate_limited(
    rate: str, *, by: Callable[..., str] | None = None, redis: str = ""
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function, sync or async, raise on a call beyond the rate.

    For example::

        @rate_limited("5/second", by=lambda user, question: user)
        async def answer(user: str, question: str) -> str: ...

    Args:
        rate: See `parse_rate`.
        by: Returns from the function's arguments whose calls are counted together; all are when
            None.
        redis: See `Limiter`.

    Raises:
        RateLimitError: by the decorated function; `retry_after_s` is in it.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        name = f"{function.__module__}.{function.__qualname__}"
        limiter = Limiter(rate, redis=redis, space=name)

        def whose(*args: Any, **kwargs: Any) -> str:
            return "" if by is None else by(*args, **kwargs)

        if inspect.iscoroutinefunction(function):
            called = cast("Callable[..., Any]", function)

            @functools.wraps(function)
            async def limited_async(*args: Any, **kwargs: Any) -> Any:
                _check(await limiter.ahit(whose(*args, **kwargs)), rate, name)
                return await called(*args, **kwargs)

            return cast("Callable[P, T]", limited_async)

        @functools.wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            _check(limiter.hit(whose(*args, **kwargs)), rate, name)
            return function(*args, **kwargs)

        return limited

    return decorate


def _check(verdict: RateVerdict, rate: str, name: str) -> None:
    if not verdict.allowed:
        raise RateLimitError(
            f"{name} is called more often than {rate}: call it again after {verdict.reset_s:.1f} s",
            retry_after_s=verdict.reset_s,
        )
