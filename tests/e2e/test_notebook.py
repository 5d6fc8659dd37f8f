"""Cells of a notebook, in a real kernel whose event loop runs already."""

from __future__ import annotations

import queue
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.e2e.processes import ROOT, environment, settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_PATIENCE_S = 120.0

_SETUP = """
import asyncio, json
import agl_core as agl
assert asyncio.get_running_loop().is_running()
with open({config!r}, encoding="utf-8") as file:
    config = json.load(file)

async def hangs(task):
    print("the agent hangs", flush=True)
    await asyncio.Event().wait()
"""

_TRAIN = "report = agl.train(config={**config, 'name': %r})"
_HANG = "agl.train(hangs, config={**config, 'name': %r})"
_AWAIT = "await asyncio.sleep(0)\n"
"""Makes of a cell a coroutine, which kernels interrupt otherwise."""


class Notebook:
    """Runs cells one after the other."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager = manager
        self._client = client

    def run(self, cell: str, *, interrupt_at: str = "") -> dict[str, Any]:
        """The kernel's reply; the kernel is interrupted once the cell has printed that text."""
        # Otherwise a kernel aborts what comes too soon after a cell that failed.
        message = self._client.execute(cell, stop_on_error=False)
        if interrupt_at:
            self._await_text(interrupt_at)
            self._manager.interrupt_kernel()
        until = time.monotonic() + _PATIENCE_S
        while True:
            reply = self._client.get_shell_msg(timeout=max(0.0, until - time.monotonic()))
            if reply["parent_header"].get("msg_id") == message:
                return reply["content"]

    def value(self, expression: str) -> str:
        reply = self._client.execute_interactive(
            "", user_expressions={"it": expression}, timeout=_PATIENCE_S
        )
        found = reply["content"]["user_expressions"]["it"]
        assert found["status"] == "ok", found
        return found["data"]["text/plain"]

    def _await_text(self, text: str) -> None:
        until, heard = time.monotonic() + _PATIENCE_S, ""
        while text not in heard:
            try:
                message = self._client.get_iopub_msg(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                pytest.fail(f"the kernel did not print {text!r}, but {heard!r}")
            content = message["content"]
            heard += content.get("text", "") + "\n".join(content.get("traceback", ()))


@pytest.fixture
def notebook(tmp_path: Path) -> Generator[Notebook]:
    manager = KernelManager(kernel_name="python3")
    own = {"IPYTHONDIR": str(tmp_path / "ipython"), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    manager.start_kernel(cwd=str(ROOT), env={**environment(), **own})
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=_PATIENCE_S)
        made = Notebook(manager, client)
        assert made.run(_SETUP.format(config=str(settings(tmp_path))))["status"] == "ok"
        yield made
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_cell_trains_while_the_kernels_loop_runs(notebook: Notebook) -> None:
    reply = notebook.run(_TRAIN % "whole")
    assert reply["status"] == "ok", reply
    assert notebook.value("len(report.steps)") == "3"
    changed = "sorted(p['sha256_before'] != p['sha256_after'] for p in report.policies.values())"
    assert notebook.value(changed) == "[False, True]"


@pytest.mark.parametrize("first", ["", _AWAIT], ids=["plain", "awaiting"])
def test_an_interrupted_cell_ends_and_the_next_one_trains(notebook: Notebook, first: str) -> None:
    reply = notebook.run(first + _HANG % "stopped", interrupt_at="the agent hangs")
    assert (reply["status"], reply.get("ename")) == ("error", "KeyboardInterrupt")
    reply = notebook.run(_TRAIN % "second")
    assert reply["status"] == "ok", reply
    assert notebook.value("len(report.steps)") == "3"
    assert notebook.value("asyncio.get_running_loop().is_running()") == "True"
