"""Runs a prompt phase in a process that kills itself: the child of `optimizer_contract`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from agl_testing._prompt_editors import editors
from agl_testing.optimizer_contract import make_optimizer
from agl_testing.prompt_world import PromptWorld, WorldSettings


def main(spec: dict[str, Any]) -> None:
    """Run until the given number of rollouts and editor calls is reached, then send SIGKILL."""
    world = PromptWorld(
        Path(spec["directory"]),
        WorldSettings(**spec["settings"]),
        editor=editors(spec["reply"])["good"],
        crash=spec["point"],
    )
    world.on_crash = lambda: os.kill(os.getpid(), signal.SIGKILL)
    optimizer = make_optimizer(spec["factory"], spec["model"], spec["options"], edits=spec["edits"])
    with world.active():
        asyncio.run(optimizer.optimize(world))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
