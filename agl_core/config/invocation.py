"""What the command line adds to a run that the user's own script starts."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from agl_core.interfaces import Observer


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """Options of ``agl train script.py``; every run that the script starts takes them on top."""

    overrides: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    observers: tuple[Observer, ...] = ()


_PLAIN = Invocation()
_invocation: ContextVar[Invocation] = ContextVar("agl_invocation", default=_PLAIN)


def current_invocation() -> Invocation:
    """The invocation around this call; an empty one outside the command line."""
    return _invocation.get()


@contextmanager
def invoked(invocation: Invocation) -> Generator[None, None, None]:
    """Let runs started inside take these options."""
    token = _invocation.set(invocation)
    try:
        yield
    finally:
        _invocation.reset(token)
