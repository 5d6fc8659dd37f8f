"""A runner takes its store from the address alone, as a trainer does."""

from __future__ import annotations

import pytest
from agl_remote._runner import serve_runner

from agl_core._builtin import load_plugins
from agl_core.config import resolve
from agl_core.errors import ConfigError


async def test_an_address_names_the_runners_store() -> None:
    config = resolve(
        {"store": {"url": "http://127.0.0.1:1"}, "gateway": {"url": "http://127.0.0.1:2"}}
    )
    with pytest.raises(ConfigError, match="There is no agent to run"):
        await serve_runner(config, load_plugins(), report=lambda ended, lost: None)
