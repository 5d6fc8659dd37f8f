"""When a server needs a key of its clients, and which one."""

from __future__ import annotations

import pytest
from agl_endpoints import key_for


@pytest.mark.parametrize(
    ("host", "open_to_all"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("h.example", False),
    ],
)
def test_only_loopback_needs_no_key(host, open_to_all, monkeypatch):
    monkeypatch.setenv("AGL_API_KEY", "secret of the team")
    assert key_for(host) == ("" if open_to_all else "secret of the team")


def test_without_a_given_key_each_server_has_a_new_one(monkeypatch):
    monkeypatch.delenv("AGL_API_KEY", raising=False)
    keys = {key_for("0.0.0.0"), key_for("0.0.0.0")}
    assert len(keys) == 2
    assert all(len(key) >= 24 for key in keys)
