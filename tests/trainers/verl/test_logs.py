"""The cause of a failed process of Ray's, from what it wrote."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
import ray
from agl_verl.driver import Driver
from agl_verl.logs import cause_in

from agl_core.errors import TrainingError


class Failing:
    """As vLLM's server: the cause goes to the log, and the error says no more than to look there."""

    def start(self):
        sys.stderr.write(
            "ValueError: Free memory on device cuda:0 (3.1/79.3 GiB) is less than 0.5\n"
        )
        sys.stderr.flush()
        raise RuntimeError("Engine core initialization failed. See root cause above.")


@pytest.fixture
def cluster():
    ray.init(address="local", num_cpus=1, log_to_driver=False, include_dashboard=False)
    yield
    ray.shutdown()


async def failure(actor):
    driver = Driver()
    try:
        with pytest.raises(TrainingError) as failed:
            await driver.run(lambda: ray.get(actor.start.remote()))
    finally:
        driver.close()
    return str(failed.value)


@pytest.mark.filterwarnings("ignore")  # Ray's, of its own processes
def test_an_error_carries_the_end_of_the_workers_log(cluster):
    """H4: the cause and the folder, where log_to_driver is off."""
    told = asyncio.run(failure(ray.remote(Failing).remote()))
    assert "See root cause above" in told
    assert "ValueError: Free memory on device cuda:0 (3.1/79.3 GiB) is less than 0.5" in told
    folder = told.rpartition("Logs of Ray's workers: ")[2]
    assert any(Path(folder).glob("worker-*"))


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
