"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_optimizers(register: Register) -> None:
    register(
        "bootstrap",
        "agl_bootstrap._bootstrap:bootstrap",
        config="agl_bootstrap._options:BootstrapOptions",
        summary="demonstrations out of an agent's own best calls, without an editor model",
    )
