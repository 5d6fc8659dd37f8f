"""Wrap one function of a library while attached, and put exactly the original back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from agl_core.errors import ConfigError

_PARAMETERS: Final = ("request", "stream", "auth", "follow_redirects")

Wrap = Callable[[Callable[..., Any], Callable[[], bool]], Callable[..., Any]]
"""Makes the wrapper of an original; the second function says whether it is still wanted."""


class Patch:
    """One wrapped ``send``.

    If somebody else has wrapped the function over ours by the time it is removed, ours stays in
    their chain and only passes through: taking theirs away is not our business.
    """

    def __init__(self, library: Any, owner: type[Any], name: str, wrap: Wrap) -> None:
        """Check the function; nothing is changed before `install`.

        Raises:
            ConfigError: the function cannot be called with ``(self, request, *, stream, auth,
                follow_redirects)``.
        """
        self._owner = owner
        self._name = name
        self._original = inspect.getattr_static(owner, name)
        self._live = False
        function = getattr(owner, name)
        _check_signature(library, owner, function)
        wrapper = wrap(function, lambda: self._live)
        self._wrapper = functools.wraps(function)(wrapper)

    def install(self) -> None:
        self._live = True
        setattr(self._owner, self._name, self._wrapper)

    def remove(self) -> None:
        self._live = False
        if inspect.getattr_static(self._owner, self._name) is self._wrapper:
            setattr(self._owner, self._name, self._original)


def _check_signature(library: Any, owner: type[Any], function: Callable[..., Any]) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(None, **dict.fromkeys(_PARAMETERS))
    except TypeError as error:
        raise ConfigError(
            f"{library.__name__} {getattr(library, '__version__', '?')}: {owner.__qualname__}.send"
            f"{signature} is not the send(self, request, *, stream, auth, follow_redirects) that "
            f"agl-core wraps ({error}), so its requests would go unrecorded: use a version of "
            f"{library.__name__} that has it, or a newer agl-core"
        ) from error
