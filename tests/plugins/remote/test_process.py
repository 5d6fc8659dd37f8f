"""Processes that only serve: their event loop and their garbage collection."""

from __future__ import annotations

import asyncio
import gc
import sys
from types import SimpleNamespace

import pytest
from agl_remote._process import rare_collections, serving_loop


def test_a_serving_process_takes_uvloop_where_it_is_installed(monkeypatch):
    made = object()
    monkeypatch.setitem(sys.modules, "uvloop", SimpleNamespace(new_event_loop=lambda: made))
    assert serving_loop() is made


def test_a_serving_process_does_without_uvloop(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = serving_loop()
    assert loop.run_until_complete(asyncio.sleep(0, "ran")) == "ran"
    loop.close()


def test_collections_are_rare_inside_and_as_before_outside():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(KeyboardInterrupt), rare_collections():  # noqa: PT012
        assert gc.isenabled()
        assert gc.get_threshold()[0] > 10 * before[0]
        assert gc.get_freeze_count() > frozen
        raise KeyboardInterrupt
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
