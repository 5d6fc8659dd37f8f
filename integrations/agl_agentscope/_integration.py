"""AgentScope, attached to the process; its version decides how."""

from __future__ import annotations

from typing import Final, Protocol

import agentscope as _agentscope  # noqa: F401  # pyright: ignore[reportUnusedImport]  says when it is missing

from agl_agentscope._spans import FRAMEWORK
from agl_agentscope._versions import installed, major
from agl_core.errors import ConfigError, pip_line
from agl_core.types import Scope

_MIDDLEWARE_SINCE: Final = 2
"""Major version that has middleware."""


class _Way(Protocol):
    """How one version is attached."""

    def attach(self) -> None: ...
    def detach(self) -> None: ...


class AgentScopeIntegration:
    """AgentScope, attached to the process."""

    name = FRAMEWORK

    def __init__(self) -> None:
        self._way = _way()

    def attach(self) -> None:
        """Record what agents do; README.md lists what is wrapped for that.

        Raises:
            ConfigError: a function of the framework is not what this was written for.
        """
        self._way.attach()

    def detach(self) -> None:
        """Put the original functions back."""
        self._way.detach()

    def identity(self) -> Scope | None:
        """No opinion: the scope is current where a call is made, in every step of a stream."""
        return None


def _way() -> _Way:
    found = installed()
    number = major(found) or 0
    if number < 1:
        raise ConfigError(
            f"agentscope {found} is older than all that agl-core can record: "
            f"{pip_line('agentscope')}"
        )
    # Each needs its version.
    if number < _MIDDLEWARE_SINCE:
        from agl_agentscope._v1.attached import WrapsOfAll  # noqa: PLC0415

        return WrapsOfAll()
    from agl_agentscope._v2.attached import MiddlewareOfAll  # noqa: PLC0415

    return MiddlewareOfAll()
