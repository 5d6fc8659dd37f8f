"""Wrap one function of a library while attached, and put exactly the original back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from agl_core.errors import ConfigError

_POSITIONAL: Final = ["self", "request"]
_KEYWORDS: Final = ["auth", "follow_redirects", "stream"]

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
            ConfigError: the function does not take ``(self, request, *, stream, auth,
                follow_redirects)``.
        """
        self._owner = owner
        self._name = name
        self._original = getattr(owner, name)
        self._live = False
        _check_signature(library, owner, self._original)
        wrapper = wrap(self._original, lambda: self._live)
        self._wrapper = functools.wraps(self._original)(wrapper)

    def install(self) -> None:
        self._live = True
        setattr(self._owner, self._name, self._wrapper)

    def remove(self) -> None:
        self._live = False
        if getattr(self._owner, self._name) is self._wrapper:
            setattr(self._owner, self._name, self._original)


def _check_signature(library: Any, owner: type[Any], function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    positional = [name for name, each in parameters.items() if each.kind is not keyword_only]
    keywords = sorted(name for name, each in parameters.items() if each.kind is keyword_only)
    if positional == _POSITIONAL and keywords == _KEYWORDS:
        return
    raise ConfigError(
        f"{library.__name__} {getattr(library, '__version__', '?')}: {owner.__qualname__}.send"
        f"{inspect.signature(function)} is not the send(self, request, *, stream, auth, "
        f"follow_redirects) that agl-core wraps, so its requests would go unrecorded: use a "
        f"version of {library.__name__} that has it, or a newer agl-core"
    )
