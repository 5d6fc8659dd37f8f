"""Ctrl+C and SIGTERM end real programs, whatever the agents in them do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from agl_core.app._components import leading
from agl_core.store._sqlite import SqliteStore
from agl_core.types import AttemptStatus, RolloutQuery
from agl_core.waits import PROCESS_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")

ROOT = Path(__file__).parents[3]
PATIENCE_S = PROCESS_S + 100
"""Bounds what hangs; a program that ends does so far earlier."""

AGENTS = """
    import asyncio, os, pathlib, signal, subprocess, sys, threading, time

    HERE = pathlib.Path(__file__).parent

    def reached():
        (HERE / "reached").touch()

    async def speaks(task):
        from tests.core.app.conftest import two_agents
        answer = await two_agents(task)
        reached()
        return answer

    def hangs(task):
        reached()
        threading.Event().wait()

    async def hangs_in_a_pool(task):
        reached()
        await asyncio.to_thread(threading.Event().wait)

    async def ignores(task):
        reached()
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    async def blocks(task):
        reached()
        time.sleep(3600)

    def waits_for_a_child(task):
        reached()
        subprocess.run([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)

    def reward(task, output, attempt):
        return 1.0

    def options(port):
        return {
            "name": "run",
            "directory": str(HERE),
            "agents": ["writer"],
            "model": "bandit",
            "tasks": {"train": str(HERE / "tasks.jsonl")},
            "engine": {"name": "bandit"},
            "gateway": {"port": port},
            "plugins": [PLUGIN],
            "algorithm": {"name": "reinforce", "group_size": 4},
            "train": {"steps": 100_000, "tasks_per_step": 2},
            "rollout": {"concurrency": 8, "timeout_s": 600.0},
        }
"""

CONFIG = """
    name = "run"
    directory = "."
    agents = ["writer"]
    model = "bandit"
    agent = "program.py:{agent}"
    plugins = ['{plugin}']
    [tasks]
    train = "tasks.jsonl"
    [[rewards]]
    name = "program.py:reward"
    [engine]
    name = "bandit"
    [gateway]
    port = {port}
    [algorithm]
    name = "reinforce"
    group_size = 4
    [train]
    steps = 100_000
    tasks_per_step = 2
    [rollout]
    concurrency = 8
    timeout_s = 600.0
"""


class Program:
    """A folder with an agent program, and the process that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        plugin = str(ROOT / "tests" / "core" / "app" / "bandit_plugin.py")
        self.write("tasks.jsonl", "".join(f'{{"input": {n}}}\n' for n in range(4)))
        self.write("program.py", f"PLUGIN = {plugin!r}\n" + textwrap.dedent(AGENTS))
        self.plugin = plugin
        self.process: subprocess.Popen[str] | None = None

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def train(self, agent: str) -> None:
        """Run ``agl train`` until an agent runs."""
        text = textwrap.dedent(CONFIG)
        self.write("run.toml", text.format(agent=agent, plugin=self.plugin, port=self.port))
        self.start("-m", "agl_core.cli", "train", "run.toml")

    def script(self, text: str) -> None:
        """Run a script until an agent runs."""
        self.write("script.py", textwrap.dedent(text).replace("PORT", str(self.port)))
        self.start("script.py")

    def start(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "AGL_DISABLE_PLUGINS": "demo,torch"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while not (self.folder / "reached").exists():
            if self.process.poll() is not None:
                pytest.fail(self.process.communicate()[0])
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        """Wait for its end; status and what it said."""
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output

    def said(self, text: str) -> str:
        """Read what it says up to the line with the text."""
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return "".join(lines)
        return pytest.fail("".join(lines))

    async def check_usable(self, *, closed: bool) -> None:
        """Port and store can be used at once, and no attempt is left running."""
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self.port))
            listener.listen()
        store = SqliteStore(self.folder / "run" / "store.db", busy_timeout_s=5)
        await store.open()
        async with leading(store, lease_s=600):
            found = await store.rollouts(RolloutQuery())
        attempts = [attempt for rollout in found for attempt in rollout.attempts]
        assert attempts
        assert AttemptStatus.RUNNING not in {attempt.status for attempt in attempts}
        if closed:
            assert AttemptStatus.LOST not in {attempt.status for attempt in attempts}
        await store.close()


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    yield program
    if program.process is not None and program.process.poll() is None:
        program.process.kill()
        program.process.communicate()


@pytest.mark.parametrize(
    ("agent", "number", "closed"),
    [
        ("speaks", signal.SIGINT, True),
        ("speaks", signal.SIGTERM, True),
        ("hangs", signal.SIGINT, True),
        ("hangs_in_a_pool", signal.SIGTERM, True),
        ("ignores", signal.SIGINT, True),
        ("waits_for_a_child", signal.SIGTERM, True),
        ("blocks", signal.SIGINT, False),
    ],
)
async def test_a_signal_ends_training_whatever_agents_do(program, agent, number, closed):
    program.train(agent)
    program.process.send_signal(number)
    status, output = program.end()
    assert status == 130, output
    assert "again to stop immediately" in output
    assert "Traceback" not in output
    await program.check_usable(closed=closed)


async def test_a_second_signal_ends_it_at_once(program):
    program.train("blocks")
    program.process.send_signal(signal.SIGINT)
    program.said("again to stop immediately")
    program.process.send_signal(signal.SIGTERM)
    status, _ = program.end()
    assert status == 130
    await program.check_usable(closed=False)


SCRIPT = """
    import signal, sys
    import agl_core as agl
    import program

    try:
        agl.train(program.AGENT, reward=program.reward, config=program.options(PORT))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        sys.exit(3)
"""


@pytest.mark.parametrize(
    ("agent", "number"),
    [("speaks", signal.SIGINT), ("hangs", signal.SIGTERM), ("ignores", signal.SIGINT)],
)
async def test_a_script_gets_a_keyboard_interrupt(program, agent, number):
    program.script(SCRIPT.replace("AGENT", agent))
    program.process.send_signal(number)
    status, output = program.end()
    assert (status, "interrupted" in output) == (3, True), output
    await program.check_usable(closed=True)


async def test_a_script_whose_loop_is_blocked_is_interrupted_all_the_same(program):
    program.script(SCRIPT.replace("AGENT", "blocks"))
    program.process.send_signal(signal.SIGINT)
    status, output = program.end()
    assert (status, "interrupted" in output) == (3, True), output
    await program.check_usable(closed=False)


async def test_a_script_keeps_the_handlers_that_it_has_set(program):
    program.script(
        """
        import os, signal
        import agl_core as agl
        import program

        def told(number, frame):
            print("mine", flush=True)
            os._exit(4)

        signal.signal(signal.SIGTERM, told)
        agl.train(program.speaks, reward=program.reward, config=program.options(PORT))
        """
    )
    program.process.send_signal(signal.SIGTERM)
    status, output = program.end()
    assert (status, "mine" in output) == (4, True), output


NOTEBOOK = """
    import asyncio, signal
    import agl_core as agl
    import program

    async def cell():
        options = program.options(PORT)
        try:
            agl.train(program.speaks, reward=program.reward, config=options)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        await asyncio.sleep(0)
        options["train"]["steps"] = 1
        options["name"] = "again"
        report = agl.train(program.speaks, reward=program.reward, config=options)
        print("trained", len(report.steps), flush=True)

    RUN
"""


@pytest.mark.parametrize(
    "run",
    [
        "asyncio.run(cell())",
        "asyncio.new_event_loop().run_until_complete(cell())",
    ],
    ids=["asyncio", "kernel"],
)
async def test_a_cell_of_a_notebook_can_be_interrupted_and_run_again(program, run):
    program.script(NOTEBOOK.replace("RUN", run))
    program.process.send_signal(signal.SIGINT)
    status, output = program.end()
    assert "interrupted" in output
    assert "trained 1" in output
    assert status == 0
    await program.check_usable(closed=True)


async def test_a_run_ends_although_threads_and_tasks_of_agents_do_not(program):
    program.script(
        """
        import os, time
        import anyio._backends._asyncio, httpcore  # an import would hold up the agents' loop
        import tests.core.app.conftest
        import agl_core as agl
        import program
        from agl_core.runner import _worker as worker
        from agl_core.tracing import AttemptContext

        def soon_over(*, rollout, deadline, **given):
            # Only those that will not end run out of time.
            if rollout.task.input in (1, 2):
                deadline = time.monotonic() + 1.0
            return AttemptContext(rollout=rollout, deadline=deadline, **given)

        async def mixed(task):
            program.reached()
            if task.input == 1:
                return await program.ignores(task)
            if task.input == 2:
                return await program.hangs_in_a_pool(task)
            return await program.speaks(task)

        options = program.options(PORT)
        options["train"] = {"steps": 1, "tasks_per_step": 4}
        worker.AttemptContext = soon_over
        report = agl.train(mixed, reward=program.reward, config=options)
        print(dict(report.steps[0].failures), report.lost, flush=True)
        os._exit(5)
        """
    )
    status, output = program.end()
    assert status == 5, output
    assert "{'deadline': 8}" in output
    assert "'abandoned_task': 4" in output
