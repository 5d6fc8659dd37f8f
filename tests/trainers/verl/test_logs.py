"""The cause of a failed process of Ray's, from what it wrote."""

from __future__ import annotations

import os

import pytest
import ray
from agl_verl._driver import Driver
from agl_verl._logs import cause_in
from ray.exceptions import RaySystemError

from agl_core.errors import TrainingError

CAUSE = "ValueError: Free memory on device cuda:0 (3.1/79.3 GiB) is less than desired"


class Node:
    """Ray's own, as far as its folder goes."""

    def __init__(self, logs):
        self.logs = logs

    def get_logs_dir_path(self):
        return str(self.logs)


async def failure(work):
    driver = Driver()
    try:
        with pytest.raises(TrainingError) as failed:
            await driver.run(work)
    finally:
        driver.close()
    return str(failed.value)


async def test_an_error_carries_the_end_of_the_workers_log(tmp_path, monkeypatch):
    """H4: the cause and the folder, where log_to_driver is off and vLLM says "see above"."""

    def fail():
        (tmp_path / "worker-ab-01-4711.err").write_text(f"{CAUSE}\n")
        raise RaySystemError("Engine core initialization failed. See root cause above (pid=4711)")

    monkeypatch.setattr(ray._private.worker, "_global_node", Node(tmp_path))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    told = await failure(fail)
    assert "See root cause above" in told
    assert f"End of worker-ab-01-4711.err:\n{CAUSE}" in told
    assert told.endswith(f"Logs of Ray's workers: {tmp_path}")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    assert CAUSE not in await failure(fail)


def test_the_named_process_comes_before_others(tmp_path):
    """H4: and a log without an error, or of an earlier run, is no cause."""
    for name, text, age in [
        ("worker-a-01-7.err", "RuntimeError: mine", 0),
        ("worker-b-01-8.err", "RuntimeError: another's", 0),
        ("worker-c-01-9.err", "all is well", 0),
        ("worker-d-01-10.out", "RuntimeError: old", -1000),
    ]:
        (tmp_path / name).write_text(f":job_id:01\n{text}\n")
        os.utime(tmp_path / name, (5000 + age, 5000 + age))
    assert "mine" in cause_in(tmp_path, "ray::Server.start() (pid=7, ip=1.2.3.4)", since=4900)
    for message, since, cause in [("no process", 4900, "RuntimeError"), ("no process", 6000, None)]:
        told = cause_in(tmp_path, message, since=since)
        assert told.endswith(f"Logs of Ray's workers: {tmp_path}")
        assert ("End of" in told) == (cause is not None)
        assert "old" not in told
        assert "well" not in told


def test_a_log_that_cannot_be_read_hides_no_cause(tmp_path):
    """H4: Ray removes and rotates its logs meanwhile."""
    (tmp_path / "worker-a-01-7.err").symlink_to(tmp_path / "gone")
    (tmp_path / "worker-b-01-8.err").write_text(f"{CAUSE}\n")
    assert CAUSE in cause_in(tmp_path, "pid=7", since=0)
