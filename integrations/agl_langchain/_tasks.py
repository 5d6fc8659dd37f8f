"""Python 3.10 only: whose code a task runs, where LangChain's own context does not say so.

Before 3.11 a task cannot be given a context, so what an async node calls sees the context of the
last *sync* or plain runnable around it, or none. Start callbacks run in the task itself, so the run
that began last there and still goes on is the better answer, if it lies inside the one named.
"""

from __future__ import annotations

import asyncio
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from agl_langchain._run import Run
    from agl_langchain._runs import RunTable

_TASKS_TAKE_CONTEXT: Final = sys.version_info >= (3, 11)
_BEGAN: ContextVar[Run | None] = ContextVar("agl_langchain_began", default=None)


def began(run: Run) -> None:
    """Note a run, in the task that starts it."""
    if not _TASKS_TAKE_CONTEXT and run.scope.kind != "call":
        _BEGAN.set(run)


def innermost(named: Run | None, table: RunTable) -> Run | None:
    """The run that goes on in this task inside `named`, which LangChain names; else `named`."""
    if _TASKS_TAKE_CONTEXT or not _in_task():
        return named
    run = _BEGAN.get()
    while run is not None and (run.scope.closed or run.table is not table):
        run = run.parent
    around = run
    while around is not None and around is not named:
        around = around.parent
    return run if around is named else named


def _in_task() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False
