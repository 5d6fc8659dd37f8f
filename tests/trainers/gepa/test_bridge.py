from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest
from agl_gepa._bridge import Bridge, EndedError, run_alongside

variable: ContextVar[str] = ContextVar("variable", default="outside")


async def value(of):
    await asyncio.sleep(0)
    return of


async def failure(error):
    raise error


def swallowing(bridge, *functions):
    """Call coroutines as gepa does: it continues after every Exception."""
    for function in functions:
        try:
            bridge.call(function())
        except Exception:  # noqa: BLE001
            continue


async def test_the_thread_gets_results_of_coroutines_of_the_loop():
    loop_thread, threads = threading.current_thread(), []

    async def where():
        threads.append(threading.current_thread())
        return variable.get()

    variable.set("inside")
    result = await run_alongside(
        lambda bridge: (bridge.call(where()), bridge.call(value(3))), name="t"
    )

    assert result == ("inside", 3)
    assert threads == [loop_thread]


async def test_an_error_of_a_coroutine_ends_the_thread_and_arrives_unchanged():
    error, after = ValueError("unchanged"), []

    def work(bridge):
        swallowing(bridge, lambda: failure(error))
        after.append("still running")

    with pytest.raises(ValueError, match="unchanged") as raised:
        await run_alongside(work, name="t")
    assert raised.value is error
    assert after == []


async def test_an_error_of_the_function_arrives():
    with pytest.raises(ZeroDivisionError):
        await run_alongside(lambda bridge: 1 / 0, name="t")


async def test_a_cancelled_run_cancels_the_coroutine_and_ends_the_thread():
    waits, cancelled, seen = asyncio.Event(), [], []

    async def forever():
        waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    def work(bridge):
        seen.append(threading.current_thread())
        swallowing(bridge, forever, lambda: value(1))
        seen.append("still running")

    run = asyncio.ensure_future(run_alongside(work, name="t"))
    await waits.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    (thread,) = seen
    assert cancelled == [True]
    thread.join(timeout=60)
    assert not thread.is_alive()


async def test_a_closed_bridge_refuses_coroutines():
    bridge = Bridge(asyncio.get_running_loop())
    bridge.close()
    with pytest.raises(EndedError):
        bridge.call(value(1))


def test_a_closed_loop_ends_the_thread():
    loop = asyncio.new_event_loop()
    bridge = Bridge(loop)
    loop.close()
    with pytest.raises(EndedError):
        bridge.call(value(1))
