"""What is kept of the user's objects, whatever they say they equal and whether they hash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import ref

_T = TypeVar("_T")


class ByIdentity(Generic[_T]):
    """One value for each object; it goes with the object. Safe to use from several threads.

    A `weakref.WeakKeyDictionary` takes two objects that compare equal for one, and none whose class
    has an ``__eq__`` and no ``__hash__``.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[ref[Any], _T]] = {}

    def get(self, owner: Any) -> _T | None:
        """The value of this object, if it has one."""
        kept = self._kept.get(id(owner))
        return None if kept is None else kept[1]

    def get_or_make(self, owner: Any, make: Callable[[], _T]) -> _T:
        """The value of this object, which is made when it has none."""
        kept = self._kept.get(id(owner))
        if kept is None:
            kept = self._kept.setdefault(id(owner), (self._follow(owner), make()))
        return kept[1]

    def owners(self) -> list[Any]:
        """The objects that have a value and still live."""
        living = [gone() for gone, _ in list(self._kept.values())]
        return [owner for owner in living if owner is not None]

    def clear(self) -> None:
        """Forget all of them."""
        self._kept.clear()

    def _follow(self, owner: Any) -> ref[Any]:
        """A reference that takes the value away before another object can have the owner's id."""
        values, key = self._kept, id(owner)

        # Runs wherever Python collects, so it waits for no lock.
        def forget(_: ref[Any]) -> None:
            values.pop(key, None)

        return ref(owner, forget)
