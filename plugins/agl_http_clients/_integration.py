"""The integration that installs the checks; every run and ``agl.attach()`` attach it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from agl_core.tracing import Patch
from agl_core.types import Scope
from agl_http_clients._requests import Requests
from agl_http_clients._sockets import Sockets


class HttpClients:
    """Checks the requests of HTTP libraries and records connections of `websockets`."""

    name = "http_clients"

    def __init__(self) -> None:
        """Start uninstalled."""
        self._requests = Requests()
        self._patches: tuple[Patch, ...] = ()

    def attach(self) -> None:
        """Wrap the libraries' functions; after an error, none.

        `websockets` is imported if it is installed, the others are wrapped when they are imported.

        Raises:
            ConfigError: a function of `websockets` has another signature than the expected one.
        """
        library = _websockets()
        patches = Sockets().patches(library) if library is not None else ()
        for patch in patches:
            patch.install()
        self._patches = patches
        self._requests.install()

    def detach(self) -> None:
        """Restore the original functions."""
        self._requests.remove()
        for patch in reversed(self._patches):
            patch.remove()
        self._patches = ()

    def identity(self) -> Scope | None:
        """Return None: HTTP libraries have no agents."""
        return None


def _websockets() -> Any | None:
    """Return ``websockets.client``; None before version 11, which has no ``ClientProtocol``."""
    if find_spec("websockets") is None:
        return None
    library = import_module("websockets.client")
    return library if hasattr(library, "ClientProtocol") else None
