"""Zero-code mode for AgentScope 1 and 2: the installed version decides how agents are recorded."""

from __future__ import annotations

from typing import Final, Protocol

import agentscope as _agentscope  # noqa: F401  # pyright: ignore[reportUnusedImport]  raises when it is missing

from agl_agentscope._spans import FRAMEWORK
from agl_agentscope._versions import installed, major
from agl_core.errors import ConfigError, pip_line
from agl_core.types import Scope

_MIDDLEWARE_SINCE: Final = 2
"""Major version that has middleware."""


class _Way(Protocol):
    """The implementation for one major version."""

    def attach(self) -> None: ...
    def detach(self) -> None: ...


class AgentScopeIntegration:
    """Records all agents of AgentScope in this process."""

    name = FRAMEWORK

    def __init__(self) -> None:
        self._way = _way()

    def attach(self) -> None:
        """Record the agents of this process; README.md lists the wrapped functions.

        Raises:
            ConfigError: a function of the framework differs from that of the supported versions.
        """
        self._way.attach()

    def detach(self) -> None:
        """Restore the original functions."""
        self._way.detach()

    def identity(self) -> Scope | None:
        """Return None: the scope is current at each request and in each step of a stream."""
        return None


def _way() -> _Way:
    found = installed()
    number = major(found) or 0
    if number < 1:
        raise ConfigError(
            f"agentscope {found} is older than all that agl-core can record: "
            f"{pip_line('agentscope')}"
        )
    # Each module can be imported only with its own version.
    if number < _MIDDLEWARE_SINCE:
        from agl_agentscope._v1.attached import WrapsOfAll  # noqa: PLC0415

        return WrapsOfAll()
    from agl_agentscope._v2.attached import MiddlewareOfAll  # noqa: PLC0415

    return MiddlewareOfAll()
