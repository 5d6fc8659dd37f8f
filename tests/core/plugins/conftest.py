"""Real distributions, made in a temporary folder and found through installed metadata."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

import pytest


class Shelf:
    """A folder on ``sys.path`` that distributions are put on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self,
        name: str,
        version: str = "1.0",
        *,
        modules: Mapping[str, str] | None = None,
        entry_points: Mapping[str, str] | None = None,
        requires: Sequence[str] = (),
    ) -> None:
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if entry_points:
            body = "".join(f"{key} = {value}\n" for key, value in entry_points.items())
            (info / "entry_points.txt").write_text(f"[agl_core]\n{body}", encoding="utf-8")
        for module, source in (modules or {}).items():
            (self.folder / f"{module}.py").write_text(dedent(source), encoding="utf-8")


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(folder))
    yield Shelf(folder)
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
