"""What a run leaves on disk: its owner's alone, and read again only as it was written."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from agl_core.errors import TrainingError
from tests.core.app.conftest import Bench


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_whatever_a_run_writes_is_private(tmp_path: Path, mask: int) -> None:
    """F2: store.db was open to everybody."""
    before = os.umask(mask)
    try:
        bench = Bench(tmp_path / "runs")
        bench.train(store__name="sqlite")
        asyncio.run(bench.app(store__name="sqlite").evaluate())
    finally:
        os.umask(before)
    modes = {
        path.relative_to(tmp_path): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    names = {path.name for path in modes}
    assert {"store.db", "config.json", "report.json", "state.json", "logits.json"} <= names
    wrong = {
        str(path): oct(mode)
        for path, mode in modes.items()
        if mode != (0o700 if (tmp_path / path).is_dir() else 0o600)
    }
    assert wrong == {}


def flip(checkpoint: Path) -> Path:
    file = checkpoint / "policies" / "trained" / "logits.json"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return file


def test_a_flipped_bit_is_not_resumed(bench: Bench) -> None:
    """E2: the error names the file and the checkpoint before it, from which the run goes on."""
    bench.train()
    checkpoints = sorted((bench.directory / "bench" / "checkpoints").iterdir())
    file = flip(checkpoints[-1])
    with pytest.raises(TrainingError) as caught:
        bench.train(train__steps=3, train__resume=True)
    assert file.name in str(caught.value)
    assert str(checkpoints[-2]) in str(caught.value)
    (checkpoints[-1] / "state.json").unlink()
    with pytest.raises(TrainingError, match=r"state\.json is missing") as caught:
        bench.train(train__steps=3, train__resume=True)
    assert str(checkpoints[-2]) in str(caught.value)
    shutil.rmtree(checkpoints[-1])
    assert len(bench.train(train__steps=3, train__resume=True).steps) == 3


def test_a_flipped_bit_is_not_evaluated(bench: Bench) -> None:
    """E2."""
    report = bench.train()
    assert report.best is not None
    flip(Path(report.best))
    with pytest.raises(TrainingError, match=r"logits\.json"):
        asyncio.run(bench.app().evaluate(checkpoint=report.best))
