"""Wrap one function of a library while attached, and put exactly the original back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from agl_core.errors import ConfigError

SEND: Final = ("request", "stream", "auth", "follow_redirects")
"""Parameters of ``send`` in httpx and httpx2."""

Wrap = Callable[[Callable[..., Any], Callable[[], bool]], Callable[..., Any]]
"""Makes the wrapper of an original; the second function says whether it is still wanted."""


class Patch:
    """One wrapped function of a class.

    If somebody else has wrapped the function over ours by the time it is removed, ours stays in
    their chain and only passes through: taking theirs away is not our business.
    """

    def __init__(
        self,
        library: Any,
        owner: type[Any],
        name: str,
        wrap: Wrap,
        *,
        parameters: Sequence[str] | None = SEND,
    ) -> None:
        """Check the function; nothing is changed before `install`.

        Args:
            library: Module whose name and version a refusal states.
            owner: Class that has the function.
            name: The function's name.
            wrap: Makes the wrapper.
            parameters: Names, ``self`` left out, that the wrapper relies on; None for one that
                passes on whatever it is given.

        Raises:
            ConfigError: the function does not take these parameters by name.
        """
        self._owner = owner
        self._name = name
        self._original = inspect.getattr_static(owner, name)
        self._inherited = name not in vars(owner)
        self._live = False
        function = getattr(owner, name)
        if parameters is not None:
            _check_signature(library, owner, name, parameters)
        wrapper = wrap(function, lambda: self._live)
        self._wrapper = functools.wraps(function)(wrapper)

    def install(self) -> None:
        self._live = True
        setattr(self._owner, self._name, self._wrapper)

    def remove(self) -> None:
        self._live = False
        if inspect.getattr_static(self._owner, self._name) is not self._wrapper:
            return
        if self._inherited:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._original)


def _check_signature(library: Any, owner: type[Any], name: str, parameters: Sequence[str]) -> None:
    signature = inspect.signature(getattr(owner, name))
    try:
        signature.bind(None, **dict.fromkeys(parameters))
    except TypeError as error:
        raise ConfigError(
            f"{library.__name__} {getattr(library, '__version__', '?')}: {owner.__qualname__}."
            f"{name}{signature} is not the {name}(self, {', '.join(parameters)}) that agl-core wraps "
            f"({error}), so what passes it would go unrecorded: use a version of "
            f"{library.__name__} that has it, or a newer agl-core"
        ) from error
