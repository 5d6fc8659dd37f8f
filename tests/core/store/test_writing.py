"""Files that are there whole or not at all, and targets that are no files."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from agl_core.errors import ConfigError
from agl_core.store._writing import whole_file


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError), whole_file(file) as stream:
        stream.writelines(b"half" if half else bytes(1 // 0) for half in (True, False))
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_disk_that_is_full_is_reported_and_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(b"before")
    full = OSError(errno.ENOSPC, "No space left on device")
    refused = pytest.raises(ConfigError, match=r"--json .*cannot be written: No space")
    with refused, whole_file(file, what="--json"):
        raise full
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege there")
def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    file, link = tmp_path / "real" / "x.json", tmp_path / "link.json"
    file.write_bytes(b"before")
    link.symlink_to(file)
    with whole_file(link) as stream:
        stream.write(b"after")
    assert link.is_symlink()
    assert file.read_bytes() == b"after"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such pipes")
def test_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "stdout"
    os.mkfifo(pipe)
    link.symlink_to(pipe)  # as /dev/stdout is one
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    with whole_file(link) as stream:
        stream.write(b"all of it")
    reader.join(10)
    assert read == [b"all of it"]
    assert link.is_symlink()
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device")
def test_a_device_that_takes_nothing_is_reported() -> None:
    refused = pytest.raises(ConfigError, match="'/dev/full' cannot be written: No space")
    with refused, whole_file("/dev/full") as stream:
        stream.write(b"x")
    assert Path("/dev/full").is_char_device()
