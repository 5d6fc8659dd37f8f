from __future__ import annotations

import os

import pytest
from agl_encryption import _keys

from tests.core.app.conftest import bench
from tests.installed import INSTALLED

__all__ = ["bench"]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    """No key of the developer's environment is used."""
    for name in [name for name in os.environ if name.startswith("AGL_ENCRYPTION_")]:
        monkeypatch.delenv(name)
    assert _keys.load_keys(None) is None


@pytest.fixture
def agl(agl, monkeypatch):
    """Run ``agl`` with this plugin."""
    others = [name for name in INSTALLED.split(",") if name != "encryption"]
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", ",".join(others))
    return agl
