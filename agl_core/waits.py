"""Time limits, in seconds, of all waits at the end of an attempt, a command or a process.

A wait that contains others is longer than each of their sequences in `CONTAINED`, so that the outer
wait never cuts off an inner one. The sequences are those of an interrupted process while either the
store or the gateway is unavailable. If both are, the process is forced to end after `PROCESS_S`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROCESS_S: Final = 9.0
"""Time from the first signal until the process is forced to end; container runtimes kill a process
after 10 s."""
THREADS_S: Final = 30.0
"""Wait for threads of user code after a command has ended."""
INTERRUPTED_THREADS_S: Final = 1.0
"""Wait for threads of user code after a signal."""

TASKS_S: Final = 1.0
"""Wait for cancelled tasks that an agent or a program left on an event loop."""
AGENT_LOOP_S: Final = 2.0
"""Wait for the agents' event loop, which waits for its cancelled tasks."""

SERVER_S: Final = 1
"""Wait for a server's open requests before they are cancelled; whole seconds."""

RETURNED_CALLS_S: Final = 2.0
"""Wait for the records of calls whose answers an agent has read, before rewards are computed."""
LAST_ANSWER_S: Final = 1.0
"""Time limit for sending the error that ends a call, as the client may not read it."""
STOPPED_CALLS_S: Final = 10.0
"""Wait for stopped calls to end; after it they are recorded as errors."""
RECORDS_S: Final = 60.0
"""Wait for the store to accept the call records of one attempt."""
GATEWAY_RECORDS_S: Final = 3.0
"""Wait for the store to accept all remaining records of an interrupted gateway process."""

SEAL_S: Final = 3.0
"""Wait for the gateway to seal an attempt of an interrupted runner."""
LEAVE_S: Final = 3.0
"""Wait for the gateway to accept the end of a trainer."""
LEAD_S: Final = 3.0
"""Wait for the store to accept the end of a trainer's lease."""
STORE_S: Final = 5.0
"""Wait for requests that write to a store server, when its client is closed."""
TRACKERS_S: Final = 60.0
"""Wait for experiment trackers to accept the remaining metrics."""

CONTAINED: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "PROCESS_S": (
        ("SEAL_S", "LEAVE_S"),  # trainer, the gateway is unavailable
        ("LEAD_S", "STORE_S"),  # trainer, the store is unavailable
        ("SEAL_S", "STORE_S"),  # runner
        ("GATEWAY_RECORDS_S", "STORE_S"),  # gateway
        ("SERVER_S", "STORE_S"),  # store server
        ("AGENT_LOOP_S", "TASKS_S", "INTERRUPTED_THREADS_S"),
    ),
    "THREADS_S": (("PROCESS_S",), ("INTERRUPTED_THREADS_S",)),
    "AGENT_LOOP_S": (("TASKS_S",),),
    "STOPPED_CALLS_S": (("LAST_ANSWER_S",),),
}
"""Wait to sequences of other waits that run within it, one after the other.

Not listed are `SEAL_S` and `GATEWAY_RECORDS_S`, which cut off the longer waits of the gateway inside
them: the process that ends does not wait for calls that do not."""
