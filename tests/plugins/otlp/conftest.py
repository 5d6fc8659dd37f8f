"""The gateway that routes are served by."""

from tests.core.gateway.conftest import make_world, world

__all__ = ["make_world", "world"]
