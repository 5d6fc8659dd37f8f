"""Checkpoints beside the commits."""

from __future__ import annotations

import math

from agl_core.store._sql import FileSettings
from agl_core.store._writer import WalCheckpointer


async def test_what_is_told_after_the_end_begins_no_checkpoint(tmp_path):
    """The writer's last deliveries come when its helpers have ended."""
    settings = FileSettings(path=tmp_path / "s.db", synchronous="normal", busy_timeout_s=1.0)
    checkpoints = WalCheckpointer(settings)
    await checkpoints.stop()
    checkpoints.written(math.inf)
    assert checkpoints._running is None
