"""Messages that errors build."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from agl_core.errors import MissingExtraError, pip_line

CLONE = {"url": "file:///home/me/agl%20core", "dir_info": {}}
EDITABLE = {"url": "file:///home/me/agl-core", "dir_info": {"editable": True}}
WHEEL = {"url": "file:///tmp/agl_core-1-py3-none-any.whl", "archive_info": {}}
COMMIT = {
    "url": "https://host/agl-core",
    "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "abc"},
}


class Installed:
    def __init__(self, origin):
        self.origin = origin

    def read_text(self, name):
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "pip install 'agl-core[crewai]'"),
        (CLONE, "pip install '/home/me/agl core[crewai]'"),
        (EDITABLE, "pip install -e '/home/me/agl-core[crewai]'"),
        (WHEEL, "pip install 'agl-core[crewai] @ file:///tmp/agl_core-1-py3-none-any.whl'"),
        (COMMIT, "pip install 'agl-core[crewai] @ git+https://host/agl-core@abc'"),
        (
            {**COMMIT, "subdirectory": "python"},
            "pip install 'agl-core[crewai] @ git+https://host/agl-core@abc#subdirectory=python'",
        ),
    ],
)
def test_a_hint_installs_from_where_agl_core_was_installed(monkeypatch, origin, line):
    """G2: the hints named a package index that has no agl-core."""
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(origin))
    assert pip_line("crewai") == line
    assert str(MissingExtraError("crewai", needs="crewai>=1", extra="crewai")).endswith(line)


def test_a_hint_needs_no_metadata(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert pip_line("torch") == "pip install 'agl-core[torch]'"
