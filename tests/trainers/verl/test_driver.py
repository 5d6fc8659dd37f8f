"""What a run is told when a process of verl's fails."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest
import torch
from agl_verl._driver import Driver, wait_for

from agl_core.errors import AglError, ConfigError, EngineError, TrainingError
from tests.trainers.verl import verl_parts  # noqa: F401 (verl imported without its warnings)

exceptions = pytest.importorskip("ray.exceptions")

DIED = (
    "The actor died unexpectedly before finishing this task.\n"
    "\tclass_name: Actor\n"
    "The actor is dead because its worker process has died. End of file. Some common causes include: "
    "(1) the process was killed by the OOM killer"
)


@pytest.fixture
def driver():
    made = Driver()
    yield made
    made.close()


def task_error(cause):
    """As `ray.get` raises it: of Ray's class and of the cause's."""
    return stored_error(cause).as_instanceof_cause()


def stored_error(cause):
    return exceptions.RayTaskError(
        "update_actor",
        f"Traceback (most recent call last):\n  File 'x'\n{type(cause).__name__}: {cause}",
        cause,
        proctitle="ray::Actor",
        pid=7,
        ip="127.0.0.1",
    )


def raising(error):
    def work():
        raise error

    return work


async def told(driver, error):
    with pytest.raises(AglError) as raised:
        await driver.run(raising(error))
    return raised.value


async def test_it_gives_the_result_from_one_thread_of_its_own(driver):
    threads = {await driver.run(threading.get_ident) for _ in range(3)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_calls_wait_for_each_other(driver):
    order, entered, go = [], threading.Event(), threading.Event()

    def first():
        entered.set()
        go.wait(10)
        order.append("first")

    tasks = [asyncio.create_task(driver.run(first))]
    await asyncio.to_thread(entered.wait, 10)
    tasks.append(asyncio.create_task(driver.run(lambda: order.append("second"))))
    await asyncio.sleep(0)
    assert order == []
    go.set()
    await asyncio.gather(*tasks)
    assert order == ["first", "second"]


@pytest.mark.parametrize("error", [ConfigError("wrong key"), EngineError("no answer")])
async def test_errors_of_ours_stay_what_they_are(driver, error):
    assert await told(driver, error) is error


@pytest.mark.parametrize("wraps", [1, 2])
async def test_what_a_worker_raises_of_ours_arrives_as_it_was_raised(driver, wraps):
    error = ConfigError("Cannot load model 'x'")
    wrapped = error
    for _ in range(wraps):
        wrapped = task_error(wrapped)
    found = await told(driver, wrapped)
    assert type(found) is ConfigError
    assert str(found) == "Cannot load model 'x'"


@pytest.mark.parametrize("wraps", [1, 2])
async def test_a_full_disk_of_a_worker_is_named_with_its_path(driver, wraps):
    error = OSError(errno.ENOSPC, "No space left on device", "/data/step-1/model.safetensors")
    for _ in range(wraps):
        error = task_error(error)
    found = await told(driver, error)
    assert type(found) is TrainingError
    assert str(found).endswith(
        "failed: [Errno 28] No space left on device: '/data/step-1/model.safetensors'"
    )


async def test_a_full_disk_of_the_driver_is_too(driver):
    error = OSError(errno.ENOSPC, "No space left on device", "/data/step-1")
    found = await told(driver, error)
    assert type(found) is TrainingError
    assert "No space left on device: '/data/step-1'" in str(found)


async def test_another_error_of_a_worker_is_told_without_rays_traceback(driver):
    found = await told(driver, task_error(ValueError("bad\nshape (3, 4)")))
    assert type(found) is TrainingError
    assert str(found) == "A process of verl failed: ValueError: bad\nshape (3, 4)"


async def test_a_process_that_died_says_what_to_lower(driver):
    found = await told(driver, exceptions.RayActorError(error_msg=DIED))
    assert type(found) is TrainingError
    text = str(found)
    assert text.startswith(
        "A process of verl died: The actor is dead because its worker process has died. End of file."
    )
    assert "common causes" not in text
    assert "ppo_max_token_len_per_gpu" in text
    assert "train.resume = true" in text


async def test_a_server_that_died_under_a_worker_is_told_the_same_way(driver):
    found = await told(driver, task_error(exceptions.RayActorError(error_msg=DIED)))
    assert str(found).startswith("A process of verl died: The actor is dead because")


async def test_a_process_that_could_not_begin_is_no_matter_of_memory(driver):
    error = exceptions.ActorDiedError(stored_error(ValueError("no such attention")))
    found = await told(driver, error)
    assert str(found) == "A process of verl failed: ValueError: no such attention"


@pytest.mark.parametrize(
    "error",
    [
        task_error(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")),
        task_error(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")),
        task_error(MemoryError("no memory")),
        exceptions.OutOfMemoryError("Task was killed due to the node running low on memory"),
    ],
)
async def test_too_little_memory_says_what_to_lower(driver, error):
    found = await told(driver, error)
    assert type(found) is TrainingError
    assert str(found).startswith("A process of verl ran out of memory: ")
    assert "memory" in str(found).partition(": ")[2].partition(". ")[0]
    assert "ppo_max_token_len_per_gpu" in str(found)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Total available GPUs 0 is less than total desired GPUs 1"),
        AssertionError("data size must be divisible"),
        RuntimeError("out of order"),
    ],
)
async def test_what_verl_refuses_in_this_process_is_told_as_verls(driver, error):
    found = await told(driver, error)
    assert type(found) is TrainingError
    assert str(found) == f"verl failed: {type(error).__name__}: {error}"
    assert found.__cause__ is error


async def test_after_the_end_nothing_is_taken():
    driver = Driver()
    await driver.run(lambda: None)
    driver.close()
    driver.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("agl-verl")]
    with pytest.raises(EngineError, match="was stopped"):
        await driver.run(lambda: None)


async def test_what_nobody_will_ever_tell_is_let_be(driver):
    """As Ray's answers are, once it has ended: a start that was cancelled must not hang."""
    waits = threading.Event()

    async def never():
        waits.set()
        await asyncio.get_running_loop().create_future()

    running = asyncio.create_task(driver.run(lambda: wait_for(never())))
    await asyncio.to_thread(waits.wait)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    driver.interrupt()
    assert await driver.run(lambda: "free again") == "free again"
    driver.interrupt()
