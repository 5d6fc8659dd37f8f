"""Waits of a run that ends: an outer one exceeds what runs inside of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import agl_core
from agl_core import waits

NAMES = [name for name in vars(waits) if name.endswith("_S")]
KILLED_S = 10.0
"""`docker stop` and Compose send SIGKILL after so long."""


@pytest.mark.parametrize("outer", waits.CONTAINED)
def test_no_wait_is_cut_off_by_the_one_that_contains_it(outer: str) -> None:
    for sequence in waits.CONTAINED[outer]:
        assert sum(getattr(waits, inner) for inner in sequence) < getattr(waits, outer), sequence


def test_a_process_ends_before_it_is_killed() -> None:
    assert waits.PROCESS_S < KILLED_S


@pytest.mark.parametrize("name", NAMES)
def test_every_wait_of_the_table_is_waited(name: str) -> None:
    root = Path(agl_core.__file__).parent
    plugins = root.parent / "plugins"
    files = [*root.rglob("*.py"), *plugins.rglob("*.py")]
    used = [path for path in files if re.search(rf"\bwaits\.{name}\b", path.read_text("utf-8"))]
    assert used
