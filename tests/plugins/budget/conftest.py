"""The gateway that counts."""

from tests.core.gateway.conftest import make_world, world

__all__ = ["make_world", "world"]
