"""Train the writer of a program in another language, which runs as a separate process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from agl_demo import world
from agl_demo.training import rows

import agl_core as agl
from agl_core.tracing import child_environment

HERE = Path(__file__).parent


def run_node(task: agl.Task) -> str:
    """Run the Node.js program with two agents; it sends their names itself."""
    given = {
        "question": task.input["question"],
        "item": task.input["item"],
        "prices": {item: f"{price} {unit}" for item, (price, unit) in world.PRICES.items()},
    }
    return _run(["node", str(HERE / "agent.mjs")], child_environment(), json.dumps(given))


def run_shell(task: agl.Task) -> str:
    """Run the shell script with one agent; its URL contains the agent's name."""
    given = task.input
    price = f"{given['price']} {given['unit']}"
    line = ["sh", str(HERE / "agent.sh"), given["question"], given["item"], price]
    return _run(line, child_environment(agent="writer"))


def _run(line: list[str], environment: dict[str, str], given: str = "") -> str:
    done = subprocess.run(  # noqa: S603  the programs of this example
        line,
        input=given,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{line[:2]} ended with {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout.strip()


def train_tasks() -> list[agl.Task]:
    return rows("train", 200, seed=1)


def held_out_tasks() -> list[agl.Task]:
    """Return questions about items that the training tasks do not contain."""
    return rows("held_out", 40, seed=1)
