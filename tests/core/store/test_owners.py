from __future__ import annotations

import sys
import threading

import pytest

from agl_core.errors import StoreError
from agl_core.store._sqlite import FileOwnership

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="owners are known through flock")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def test_only_the_first_holder_is_alone(path):
    first, second = (FileOwnership(path, timeout_s=10) for _ in range(2))
    assert first.enter()
    first.share()
    assert not second.enter()
    first.leave()
    second.leave()
    assert first.enter()
    first.leave()
    first.leave()


def test_second_holder_waits_while_the_first_sets_the_file_up(path):
    first, second = (FileOwnership(path, timeout_s=60) for _ in range(2))
    assert first.enter()
    found = []
    entering = threading.Thread(target=lambda: found.append(second.enter()))
    entering.start()
    first.share()
    entering.join(60)
    assert found == [False]
    first.leave()
    second.leave()


def test_holder_that_never_finishes_is_named(path):
    first, second = FileOwnership(path, timeout_s=10), FileOwnership(path, timeout_s=0.01)
    assert first.enter()
    with pytest.raises(StoreError, match=r"busy.*opening.*store\.db-owners.*busy_timeout_s"):
        second.enter()
    first.leave()
    assert second.enter()
    second.leave()


def test_file_system_without_such_locks_leaves_it_to_the_leases(path, monkeypatch):
    import fcntl

    def unsupported(*_):
        raise OSError("not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    holder = FileOwnership(path, timeout_s=10)
    assert not holder.enter()
    holder.share()
    holder.leave()
