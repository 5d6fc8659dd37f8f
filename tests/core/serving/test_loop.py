from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

from agl_core.serving.loop import serving_loop


def test_a_serving_process_takes_uvloop_where_it_is_installed(monkeypatch):
    made = object()
    monkeypatch.setitem(sys.modules, "uvloop", SimpleNamespace(new_event_loop=lambda: made))
    assert serving_loop() is made


def test_a_serving_process_does_without_uvloop(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = serving_loop()
    assert loop.run_until_complete(asyncio.sleep(0, "ran")) == "ran"
    loop.close()
