"""Prompt phases as a user runs them: ``agl train``, an endpoint without token ids, SQLite, kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest
from agl_testing.fake_openai import FakeOpenAI, FakeOptions
from agl_tuning._runs import KEY

from agl_core.store import STORE_FILE, SqliteStore
from agl_core.types import RolloutQuery, RolloutStatus
from tests.e2e.prompted import WORDS

PROGRAM = Path(__file__).with_name("prompted.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def answer(body):
    """Use the words of the prompt, and by chance others; equal requests get equal answers."""
    head, question = (message["content"] for message in body["messages"])
    chance = sha256((head + question).encode()).digest()
    return " ".join(
        word for word, byte in zip(WORDS, chance, strict=False) if word in head or byte < 64
    )


class Run:
    """A run in a directory of its own, whose model is `answer`."""

    def __init__(self, directory, url):
        directory.mkdir()
        self.directory = directory
        self.figures = directory / "figures.json"
        self.edits = directory / "edits.txt"
        config = {
            "name": "run",
            "directory": str(directory / "runs"),
            "agent": f"{PROGRAM}:run_agent",
            "model": "fake-model",
            "tasks": {"train": f"{PROGRAM}:train", "val": f"{PROGRAM}:val"},
            "rewards": [{"name": f"{PROGRAM}:reward"}],
            "engine": {"name": "http", "base_url": url},
            "rollout": {"timeout_s": 600, "lease_s": 300, "concurrency": 4},
            "prompts": {"writer": {"agents": ["writer"], "captured": True}},
            "optimizers": {"apo": {"editor": {"function": f"{PROGRAM}:edit"}, "confidence": 0.7}},
            "phases": [
                {"optimizer": "apo", "rollouts": 110, "rounds": 2, "beam_width": 2, "val_batch": 4},
                {"optimizer": "bootstrap", "rollouts": 60, "confidence": 0.7, "threshold": 0.9},
            ],
        }
        self.file = directory / "run.json"
        self.file.write_text(json.dumps(config))

    def start(self, *options):
        line = [sys.executable, "-m", "agl_core.cli", "train", str(self.file)]
        return subprocess.Popen(
            [*line, "--json", str(self.figures), *options],
            cwd=self.directory,
            env={**os.environ, "EDITS": str(self.edits), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, *options):
        """Run to the end; return the figures that do not depend on time."""
        process = self.start(*options)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        figures = json.loads(self.figures.read_text())
        return {name: figures[name] for name in ("prompts", "rollouts", "editor_calls")}

    def keys(self):
        """Return the keys of the finished rollouts, with how often each was run."""

        async def read():
            store = SqliteStore(self.directory / "runs" / "run" / STORE_FILE)
            await store.open()
            done = (RolloutStatus.SUCCEEDED, RolloutStatus.FAILED)
            found = await store.rollouts(RolloutQuery(statuses=done, limit=10_000))
            await store.close()
            return Counter(each.metadata[KEY] for each in found if KEY in each.metadata)

        return asyncio.run(read())


def test_a_killed_run_resumes_without_repeating_a_rollout_or_an_edit(tmp_path):
    with FakeOpenAI(answer, FakeOptions(token_ids=False)) as server:
        whole = Run(tmp_path / "whole", server.base_url)
        expected = whole.finish()
        writer = expected["prompts"]["writer"]
        assert writer["after"]["mean"] > writer["before"]["mean"]
        assert expected["editor_calls"] == len(whole.edits.read_text().splitlines()) > 0
        assert set(whole.keys().values()) == {1}
        calls = len(server.log)
        for point in (5, calls // 3, calls * 2 // 3, calls - 20):
            run = Run(tmp_path / str(point), server.base_url)
            before = len(server.log)
            process = run.start()
            server.wait(before + point)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert run.finish("--set", "train.resume=true") == expected, point
            assert run.keys() == whole.keys(), point
            # Calls under way when the process was killed are on no record.
            again = len(run.edits.read_text().split()) - len(whole.edits.read_text().split())
            assert 0 <= again <= 4, point
