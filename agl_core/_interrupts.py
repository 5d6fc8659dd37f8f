"""SIGINT and SIGTERM: the first one stops in order, the second one stops immediately."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from agl_core import waits

INTERRUPTED: Final = 130
"""Exit status after Ctrl+C, as shells expect it."""

_AGAIN_S: Final = 1.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_OF_LOOPS: Final = ("asyncio.runners", "ipykernel.ipkernel")
"""Modules whose handlers cancel the running task, which has no effect while the task blocks its loop."""
_SHOW_CURSOR: Final = b"\x1b[?25h"
_NOTICE: Final = b"\nStopping and storing records. Press Ctrl+C again to stop immediately.\n"


class Interrupts:
    """Handler of both signals, for as long as it is `installed`.

    The first signal calls the `end` of every `ending` block, or raises KeyboardInterrupt if there is
    none. A second signal, or `waits.PROCESS_S` without an end, forces: the `agl` program exits at
    once with status 130, without cleanup; in another program KeyboardInterrupt is raised in the
    main thread until it takes effect.
    """

    def __init__(self, *, leaves: bool) -> None:
        """Build it; nothing is handled yet.

        Args:
            leaves: Whether forcing ends the process.
        """
        self._leaves = leaves
        self._end: Callable[[], object] | None = None
        self._active = False
        self.count = 0
        """Signals that came."""

    @contextmanager
    def installed(self) -> Generator[None, None, None]:
        """Handle signals that have no other handler; for the main thread only."""
        before: dict[int, Any] = {}
        for number in _SIGNALS:
            if _is_pythons(signal.getsignal(number)):
                before[number] = signal.signal(number, self)
        self._active = True
        try:
            yield
        finally:
            # The timer stays until the process has ended.
            self._active = self._leaves
            for number, handler in before.items():
                if signal.getsignal(number) is self:
                    signal.signal(number, handler)

    @contextmanager
    def ending(self, end: Callable[[], object]) -> Generator[None, None, None]:
        """Have the first signal call `end`, which may be called at any moment, inside."""
        outer, self._end = self._end, end
        try:
            yield
        finally:
            self._end = outer

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.count += 1
        if self.count > 1:
            self._force()
            return
        # Not a `threading.Thread`: its start takes locks that the main thread may be holding.
        _thread.start_new_thread(self._force_in_time, ())
        if self._leaves:
            with suppress(OSError):
                os.write(2, _NOTICE)  # a stream could be in use by what the signal interrupted
        if self._end is None:
            raise KeyboardInterrupt
        self._end()

    def _force_in_time(self) -> None:
        time.sleep(waits.PROCESS_S)
        while self._active:
            if self._leaves:
                leave(INTERRUPTED)
            _interrupt_main_thread()
            time.sleep(_AGAIN_S)

    def _force(self) -> None:
        if self._leaves:
            leave(INTERRUPTED)
        raise KeyboardInterrupt


def leave(status: int) -> None:
    """End the process now, without cleanup, whatever blocks."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.isatty(descriptor):
                os.write(descriptor, _SHOW_CURSOR)  # a progress display may have hidden it
    os._exit(status)


def _interrupt_main_thread() -> None:
    """Send a real signal where the system has signals: it also interrupts system calls."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


def current_interrupts() -> Interrupts | None:
    """The handler that is installed.

    One that raises KeyboardInterrupt is made where a handler of Python's own is in place. There is
    none where the program has its own, nor outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    handlers = [signal.getsignal(number) for number in _SIGNALS]
    ours = [handler for handler in handlers if isinstance(handler, Interrupts)]
    if ours:  # of one signal, where the shell that put the program aside has it ignore the other
        return ours[0]
    return Interrupts(leaves=False) if _is_pythons(handlers[0]) else None


def may_be_the_users() -> bool:
    """Whether a KeyboardInterrupt that was raised may be the user's, and not the raiser's own.

    Python's own handler raises it, and ours when it forces; other handlers do not.
    """
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, Interrupts):
        return handler.count > 0
    return handler is signal.default_int_handler


def _is_pythons(handler: Any) -> bool:
    """Whether a handler is a default, or acts only when the event loop runs."""
    module = getattr(getattr(handler, "func", handler), "__module__", "")
    return module in _OF_LOOPS or handler in (signal.default_int_handler, signal.SIG_DFL)
