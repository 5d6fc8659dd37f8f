"""The measured side of a benchmark: a process that answers requests, one JSON line each.

Standard library only: the interpreters of peers import it too.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

Action = Callable[..., Coroutine[Any, Any, Any]]


def serve(**actions: Action) -> None:
    """Answer ``{"do": NAME, ...}`` with ``{"found": ...}`` until standard input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        found = asyncio.run(actions[request.pop("do")](**request))
        answers.write(json.dumps({"found": found}) + "\n")
        answers.flush()
