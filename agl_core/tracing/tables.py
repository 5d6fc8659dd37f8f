"""What an integration keeps of each attempt, found again by the framework's own ids."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from agl_core.tracing.context import AttemptContext, active
from agl_core.tracing.recorder import Recorder
from agl_core.types import Scope


class Table(Protocol):
    """What is open in one attempt; also the attempt's locator, asked for the innermost scope."""

    def __call__(self, opened: Scope | None, /) -> Scope | None: ...

    def __contains__(self, key: Any, /) -> bool:
        """Whether it knows this id of the framework's."""
        ...


_T = TypeVar("_T", bound=Table)


class Tables(Generic[_T]):
    """One table for each attempt, whatever number of hooks is told of what goes on in it.

    A table lives as long as its attempt: one that ends early leaves nothing behind.
    """

    def __init__(self, framework: str, make: Callable[[Recorder], _T]) -> None:
        """For one framework; make one, as a constant of the integration.

        Args:
            framework: The integration's name.
            make: Makes the table of an attempt with this recorder.
        """
        self._framework = framework
        self._make = make
        self._all: WeakSet[_T] = WeakSet()
        self._lock = Lock()

    def of(self, context: AttemptContext) -> _T:
        """The attempt's table, made and entered as the attempt's locator on first use."""
        table: Any = context.locators.get(self._framework)
        if table is None:
            table = context.locators.setdefault(self._framework, self._make(context.recorder))
            with self._lock:
                self._all.add(table)
        return table

    def here(self) -> _T | None:
        """The table of the attempt that this code runs in, where it has one yet."""
        context = active()
        table: Any = None if context is None else context.locators.get(self._framework)
        return table

    def holding(self, key: Any) -> _T | None:
        """The table that knows an id: this attempt's, else any.

        Frameworks call some hooks elsewhere than where the work began.
        """
        table = self.here()
        if table is not None and key in table:
            return table
        with self._lock:
            tables = [*self._all]
        return next((each for each in tables if key in each), None)
