"""The server of one backend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from agl_endpoints import HttpBackend, OneModel, openai_server

from agl_core._builtin import load_plugins
from agl_core.errors import PluginError
from agl_core.plugins import hookimpl
from agl_core.plugins._manager import Source


def with_dialect(name: str) -> Any:
    @hookimpl
    def agl_register_dialects(register: Any) -> None:
        register(name, "agl_responses._request:read")

    plugins = load_plugins()
    plugins.register(
        SimpleNamespace(agl_register_dialects=agl_register_dialects), Source(name="mine")
    )
    return plugins


@pytest.mark.parametrize("name", ["/plain", "GET /plain", "POST /chat/completions"])
def test_a_server_of_one_backend_refuses_a_dialect_that_it_cannot_serve(name: str) -> None:
    backend = HttpBackend("http://127.0.0.1:9", model="m")
    with pytest.raises(PluginError, match=f"Dialect '{name}' cannot be served"):
        openai_server(OneModel(backend, "m"), plugins=lambda: with_dialect(name))


def test_a_server_of_one_backend_has_the_dialects_of_plugins() -> None:
    backend = HttpBackend("http://127.0.0.1:9", model="m")
    server = openai_server(OneModel(backend, "m"), plugins=lambda: with_dialect("POST /plain"))
    assert {"/v1/plain", "/v1/responses"} <= set(server._dialects)
