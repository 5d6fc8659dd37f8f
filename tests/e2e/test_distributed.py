"""A run in pieces, each started, ended and killed as a user does it: by the command line."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from agl_testing.fake_openai import FakeOpenAI

from agl_core.serving import AttemptKeys
from tests.e2e.processes import HAND_SIZED, KEY, Process, alive, free_ports, settings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform == "win32", reason="ends processes by signal"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_plain_client" / "run.toml"
HANG = """
import asyncio, time

def deaf(task):
    while True:
        time.sleep(1)

async def waiting(task):
    await asyncio.Event().wait()
"""

MADE_AT_IMPORT = """
import contextlib
import openai
import agl_core as agl

PORT = {port}
here = openai.OpenAI(base_url=f"http://127.0.0.1:{{PORT}}/v1", api_key="of-the-user", max_retries=0)
there = openai.OpenAI(base_url=f"http://localhost:{{PORT}}/v1", api_key="of-the-user", max_retries=0)

def run_agent(task):
    ask("planner", here)
    with contextlib.suppress(openai.APIError, agl.CaptureError):
        ask("critic", there)
    return ask("writer", here)

def ask(agent, llm):
    with agl.agent_scope(agent):
        said = [{{"role": "user", "content": f"{{agent}} {{task_of()}}"}}]
        answer = llm.chat.completions.create(model="gpt-x", messages=said)
    return answer.choices[0].message.content

def task_of():
    return agl.current().rollout.task.id
"""


class Deployment:
    """Starts processes of one run; ends them all at last."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store_port, self.gateway_port = free_ports(2)
        self.store = f"http://127.0.0.1:{self.store_port}"
        self.gateway = f"http://127.0.0.1:{self.gateway_port}"
        self.database = directory / "store.db"
        self._all: list[Process] = []

    def start(self, *arguments: str, **options: Any) -> Process:
        log = self.directory / f"{len(self._all)}-{arguments[0]}.log"
        self._all.append(Process(log, *arguments, **options))
        return self._all[-1]

    def settings(self, **sections: Any) -> Path:
        sections["store"] = {"name": "http", "url": self.store}
        sections["gateway"] = {"url": self.gateway}
        sections["rollout"] = {"local": False, **sections.get("rollout", {})}
        return settings(self.directory, **sections)

    def serve(self) -> tuple[Process, Process]:
        """Store and gateway."""
        store = self.start("store", "serve", str(self.database), "--port", str(self.store_port))
        gateway = self.start(*("gateway", "--store", self.store, "--port", str(self.gateway_port)))
        store.until_it_says("http://")
        gateway.until_it_says("http://")
        return store, gateway

    def assert_alive(self) -> None:
        """What is waited for may never come once a process has ended."""
        for process in self._all:
            assert process.popen.poll() is None, process.said

    def end(self) -> None:
        for process in self._all:
            process.end()


@pytest.fixture
def pieces(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    yield made
    made.end()


def report_of(config: Path) -> dict[str, Any]:
    settings = json.loads(config.read_text())
    file = Path(settings["directory"]) / settings["name"] / "report.json"
    return json.loads(file.read_bytes())


def train_whole(pieces: Deployment, config: Path, *further: str) -> dict[str, Any]:
    """The same run in one process."""
    values = [
        f"directory={pieces.directory / 'whole'}",
        "store.name=memory",
        "store.url=null",
        "gateway.url=null",
        "rollout.local=true",
        *further,
    ]
    process = pieces.start("train", str(config), *set_options(values), disabled="")
    assert process.popen.wait() == 0, process.said
    (report,) = pieces.directory.glob("whole/*/report.json")
    return json.loads(report.read_bytes())


def set_options(values: list[str]) -> list[str]:
    return [part for value in values for part in ("--set", value)]


def assert_equal_runs(apart: dict[str, Any], whole: dict[str, Any]) -> None:
    assert [step["reward"] for step in apart["steps"]] == [
        step["reward"] for step in whole["steps"]
    ]
    assert apart["calls"] == whole["calls"]
    assert apart["policies"].keys() == whole["policies"].keys()
    for name, policy in apart["policies"].items():
        assert policy["sha256_after"] == whole["policies"][name]["sha256_after"]


def test_a_run_in_five_processes_equals_one_in_one(pieces: Deployment) -> None:
    config = pieces.settings()
    store, gateway = pieces.serve()
    runner = pieces.start("runner", str(config), "--processes", "2")
    trainer = pieces.start("train", str(config))
    assert trainer.popen.wait() == 0, trainer.said
    workers = runner.children()
    for process in (runner, gateway, store):
        with soon():
            assert process.interrupt() == 130, process.said
            until_gone(workers)
    assert "24 attempts ended, workers replaced: none, lost nothing" in runner.said
    assert_equal_runs(report_of(config), train_whole(pieces, config))
    again, _ = pieces.serve()
    assert again.popen.poll() is None


def test_a_torch_run_in_pieces_ends_with_the_weights_of_one_in_one(pieces: Deployment) -> None:
    """The example as it stands; the runner needs none of what the trainer needs."""
    values = [
        "tasks.val=null",
        "train.steps=2",
        "train.tasks_per_step=2",
        "algorithm.group_size=2",
        "engine.deterministic=true",
    ]
    elsewhere = [
        f"directory={pieces.directory / 'apart'}",
        f"gateway.url={pieces.gateway}",
        "store.name=http",
        f"store.url={pieces.store}",
    ]
    pieces.serve()
    pieces.start(
        *("runner", str(EXAMPLE), "--processes", "2", *set_options(values)),
        *("--store", pieces.store, "--gateway", pieces.gateway),
    )
    options = set_options([*values, *elsewhere, "rollout.local=false"])
    trainer = pieces.start("train", str(EXAMPLE), *options, disabled="")
    assert trainer.popen.wait() == 0, trainer.said
    (report,) = pieces.directory.glob("apart/*/report.json")
    whole = train_whole(pieces, EXAMPLE, *values)
    assert_equal_runs(json.loads(report.read_bytes()), whole)


@pytest.mark.parametrize(
    ("agent", "number"), [("deaf", signal.SIGTERM), ("waiting", signal.SIGINT)]
)
def test_runners_are_gone_soon_after_a_signal(pieces: Deployment, agent: str, number: int) -> None:
    """Whatever their agents do; what they did goes back to the queue."""
    (pieces.directory / "hang.py").write_text(HANG, encoding="utf-8")
    config = pieces.settings(agent=f"{pieces.directory / 'hang.py'}:{agent}")
    pieces.serve()
    trainer = pieces.start("train", str(config))
    runner = pieces.start("runner", str(config), "--processes", "2")
    until_running(pieces, 8)
    workers = runner.children()
    with soon():
        assert runner.interrupt(number) == 130, runner.said
        until_gone(workers)
    assert trainer.popen.poll() is None, trainer.said
    pieces.start("runner", str(config), "--set", f"agent={hand_sized_agent()}")
    assert trainer.popen.wait() == 0, trainer.said
    assert report_of(config)["lost"]["attempts_retried_lost"] == 8


def test_agents_that_block_their_loop_keep_their_leases(
    pieces: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: a sync program in an ``async def``, in workers, for longer than a lease of 3 s.

    It blocks until that is reported and every lease is one that heartbeats have renewed.
    """
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setenv("SLOW_SERVER", str(pieces.directory / "answer"))
    config = pieces.settings(train={"steps": 1}, rollout={"lease_s": 3.0})
    with (pieces.directory / "answer").open("w") as answer:
        fcntl.flock(answer, fcntl.LOCK_EX)
        pieces.serve()
        trainer = pieces.start("train", str(config))
        agent = ("--set", f"agent={HAND_SIZED}:blocks")
        runner = pieces.start("runner", str(config), "--processes", "2", *agent)
        # One blocks its worker at once; the other worker claims one more at least after its first
        # await, two where that came promptly.
        until_running(pieces, 3)
        first = leases(pieces)
        while (now := leases(pieces)).keys() >= first.keys() and any(
            now[attempt] <= due_at + 3.0 for attempt, due_at in first.items()
        ):
            pieces.assert_alive()
            time.sleep(0.05)
        assert now.keys() >= first.keys(), runner.said
        runner.until_it_says("by 'blocks'")
        assert leases(pieces).keys() >= first.keys(), runner.said
    assert trainer.popen.wait() == 0, trainer.said
    assert runner.interrupt() == 130, runner.said
    assert "8 attempts ended, workers replaced: none, lost nothing" in runner.said
    assert "_sync_program(task)" in runner.said
    assert "Make 'blocks' a plain def" in runner.said
    report = report_of(config)
    assert not [cause for cause in report["lost"] if cause.startswith("attempts")]
    assert report["calls"] == 8


def test_a_worker_with_too_many_threads_that_hang_is_replaced(pieces: Deployment) -> None:
    """Six attempts hang for ever; the others are done, and everything ends."""
    (pieces.directory / "hang.py").write_text(
        "import asyncio, time\n"
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.e2e.hand_sized import run_agent\n"
        "def sometimes(task):\n"
        "    import agl_core as agl\n"
        "    while agl.current().rollout.metadata['sample'] < 3:\n"
        "        time.sleep(1)\n"
        "    return asyncio.run(run_agent(task))\n",
        encoding="utf-8",
    )
    config = pieces.settings(
        agent=f"{pieces.directory / 'hang.py'}:sometimes",
        train={"steps": 2},
        rollout={"timeout_s": 15},
    )
    pieces.serve()
    runner = pieces.start(
        "runner", str(config), "--processes", "2", "--set", "rollout.concurrency=8"
    )
    trainer = pieces.start("train", str(config))
    assert trainer.popen.wait() == 0, trainer.said
    assert runner.interrupt() == 130, runner.said
    assert "is replaced: user code in it cannot be stopped" in runner.said
    assert "recycled=" in runner.said
    report = report_of(config)
    assert report["lost"]["attempts_dropped_deadline"] == 12
    # What the last attempts left behind has no later attempt to travel with.
    assert 5 <= report["lost"]["abandoned_thread"] <= 12


def test_a_second_signal_does_not_wait(pieces: Deployment) -> None:
    (pieces.directory / "hang.py").write_text(HANG, encoding="utf-8")
    config = pieces.settings(agent=f"{pieces.directory / 'hang.py'}:deaf")
    pieces.serve()
    pieces.start("train", str(config))
    runner = pieces.start("runner", str(config), "--processes", "2")
    until_running(pieces, 8)
    workers = runner.children()
    runner.popen.send_signal(signal.SIGINT)
    runner.until_it_says("again to stop immediately")
    assert runner.interrupt() == 130
    until_gone(workers)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_no_agent_finds_the_operators_key(
    pieces: Deployment, processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: it is neither in a runner's environment nor in that of a worker, nor in the store."""
    found = pieces.directory / "found"
    found.mkdir()
    monkeypatch.setenv("LOOKED_AROUND", str(found))
    config = pieces.settings(train={"steps": 1})
    pieces.serve()
    agent = ("--set", f"agent={HAND_SIZED}:looks_around")
    pieces.start("runner", str(config), "--processes", processes, *agent)
    assert pieces.start("train", str(config)).popen.wait() == 0
    texts = [file.read_text() for file in found.iterdir()]
    assert len(texts) == 8
    assert not [text for text in texts if KEY in text]
    assert all("OPENAI_API_KEY" in text for text in texts)
    files = [file.read_bytes() for file in pieces.directory.rglob("store.db*")]
    keys = [KEY, AttemptKeys(KEY).client.rpartition("-")[0]]
    assert not [key for key in keys for data in files if key.encode() in data]


def test_clients_made_at_import_in_a_runner_are_rerouted_sent_or_refused(
    pieces: Deployment,
) -> None:
    """G3, C2: by agent, as the trainer's configuration says, and counted in its report."""
    with FakeOpenAI(lambda body: "from the provider") as provider:
        address = urlsplit(provider.base_url)
        assert address.hostname == "127.0.0.1"
        agent = pieces.directory / "made_at_import.py"
        agent.write_text(MADE_AT_IMPORT.format(port=address.port), encoding="utf-8")
        config = pieces.settings(
            agent=f"{agent}:run_agent",
            train={"steps": 1},
            capture={"elsewhere": "refuse", "allow_hosts": ["127.0.0.1"]},
        )
        pieces.serve()
        # What is captured is the trainer's to say: this runner would send everything.
        own = set_options(["capture.elsewhere=count", "capture.allow_hosts=[]"])
        runner = pieces.start("runner", str(config), *own)
        trainer = pieces.start("train", str(config))
        assert trainer.popen.wait() == 0, trainer.said + runner.said
        asked = [entry.body["messages"][0]["content"].split()[0] for entry in provider.log]
    assert asked == ["planner"] * 8
    report = report_of(config)
    assert report["calls"] == 8
    elsewhere = {cause: n for cause, n in report["lost"].items() if "elsewhere" in cause}
    assert elsewhere == {
        f"sent_elsewhere_by_planner_to_127.0.0.1:{address.port}": 8,
        f"refused_elsewhere_by_critic_to_localhost:{address.port}": 8,
    }
    assert runner.interrupt() == 130, runner.said


def test_a_wrong_key_ends_a_runner_with_status_2(pieces: Deployment) -> None:
    config = pieces.settings()
    pieces.serve()
    runner = pieces.start("runner", str(config), "--processes", "2", key="another")
    assert runner.popen.wait() == 2
    assert "wrong key" in runner.said


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """Within ten seconds, of which a busy machine may make forty."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 40


def until_gone(pids: set[int]) -> None:
    while any(alive(pid) for pid in pids):
        time.sleep(0.02)


def hand_sized_agent() -> str:
    return f"{Path(__file__).with_name('hand_sized.py')}:run_agent"


def leases(pieces: Deployment) -> dict[str, float]:
    """Until when the running attempts are kept without a heartbeat, by id."""
    with contextlib.closing(sqlite3.connect(pieces.database)) as connection:
        return dict(connection.execute("SELECT id, due_at FROM attempts WHERE running = 1"))


def until_running(pieces: Deployment, attempts: int) -> None:
    with contextlib.closing(sqlite3.connect(pieces.database)) as connection:
        count = "SELECT count(*) FROM rollouts WHERE status = 'running'"
        while connection.execute(count).fetchone()[0] < attempts:
            pieces.assert_alive()
            time.sleep(0.05)
