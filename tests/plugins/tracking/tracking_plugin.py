"""A tracker that keeps what it is told, and does what a test asks of it instead."""

import threading
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict

from agl_core.plugins import hookimpl

TOLD: list[tuple[str, Any]] = []
"""Method and argument, in order; cleared by the fixture of the tests."""
THREADS: set[str] = set()
INSTEAD: dict[str, Callable[[Any], None]] = {}
"""Method to what it does after it kept its argument."""


class RecordingOptions(BaseModel):
    """Options of the tracker."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    colour: str = "red"
    """One that nobody needs."""


class RecordingTracker:
    def __init__(self, options: RecordingOptions) -> None:
        self.options = options

    def start(self, run: Any) -> None:
        self._keep("start", run)

    def step(self, report: Any) -> None:
        self._keep("step", report)

    def evaluation(self, evaluation: Any) -> None:
        self._keep("evaluation", evaluation)

    def finish(self, outcome: Any) -> None:
        self._keep("finish", outcome)

    def _keep(self, method: str, given: Any) -> None:
        TOLD.append((method, given))
        THREADS.add(threading.current_thread().name)
        if method in INSTEAD:
            INSTEAD[method](given)


@hookimpl
def agl_register_trackers(register: Callable[..., None]) -> None:
    for name in ("recording", "other"):
        register(
            name,
            f"{__name__}:RecordingTracker",
            config=f"{__name__}:RecordingOptions",
            summary="keeps what it is told",
        )
    register("uninstalled", f"{__name__}:uninstalled", summary="lacks its package")


def uninstalled(options: Any) -> Any:
    import a_package_that_is_not_there

    return a_package_that_is_not_there.Tracker(options)
