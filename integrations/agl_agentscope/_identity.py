"""A weak mapping by object identity, also for objects that are not hashable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import ref

_T = TypeVar("_T")


class ByIdentity(Generic[_T]):
    """One value for each object, removed together with the object. Thread-safe.

    A `weakref.WeakKeyDictionary` treats objects that compare equal as one key, and fails for a
    class with ``__eq__`` and without ``__hash__``.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[ref[Any], _T]] = {}

    def get(self, owner: Any) -> _T | None:
        """Return the object's value; None if it has none."""
        kept = self._kept.get(id(owner))
        return None if kept is None else kept[1]

    def get_or_make(self, owner: Any, make: Callable[[], _T]) -> _T:
        """Return the object's value; make one if it has none."""
        kept = self._kept.get(id(owner))
        if kept is None:
            kept = self._kept.setdefault(id(owner), (self._follow(owner), make()))
        return kept[1]

    def owners(self) -> list[Any]:
        """Return the live objects that have a value."""
        living = [gone() for gone, _ in list(self._kept.values())]
        return [owner for owner in living if owner is not None]

    def clear(self) -> None:
        """Remove all values."""
        self._kept.clear()

    def _follow(self, owner: Any) -> ref[Any]:
        """Return a weak reference that removes the value before the owner's id can be reused."""
        values, key = self._kept, id(owner)

        # The garbage collector may call this in any thread, so it must not wait for a lock.
        def forget(_: ref[Any]) -> None:
            values.pop(key, None)

        return ref(owner, forget)
