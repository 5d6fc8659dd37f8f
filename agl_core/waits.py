"""How long each part of a run waits when it ends, in seconds: one table.

A wait that contains others is longer than each of their sequences in `CONTAINED`, so that an inner
wait is never cut off by the outer one. The sequences are those of a process that is interrupted
while one other server, store or gateway, is away. Where both are, the process is forced to end when
`PROCESS_S` has passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROCESS_S: Final = 9.0
"""From the first signal until the process is forced to end; container runtimes kill it after 10."""
THREADS_S: Final = 30.0
"""Threads of user code, after a command has ended."""
INTERRUPTED_THREADS_S: Final = 1.0
"""The same, after a signal."""

TASKS_S: Final = 1.0
"""Cancelled tasks that an agent or a program left on an event loop."""
AGENT_LOOP_S: Final = 2.0
"""The loop of the agents, which waits for its cancelled tasks."""

SERVER_S: Final = 1
"""A server's open requests, before they are cancelled; whole seconds."""

RETURNED_CALLS_S: Final = 2.0
"""Model calls that an agent has read and that are not yet recorded, before rewards are computed."""
LAST_ANSWER_S: Final = 1.0
"""A client that does not read, to which the gateway sends the error that ends its call."""
STOPPED_CALLS_S: Final = 10.0
"""Model calls that were stopped, until they are recorded as errors."""
RECORDS_S: Final = 60.0
"""The store, for the call records of one attempt."""
GATEWAY_RECORDS_S: Final = 3.0
"""The store, for all records that an interrupted gateway process still holds."""

SEAL_S: Final = 3.0
"""The gateway, for an attempt that an interrupted runner seals."""
LEAVE_S: Final = 3.0
"""The gateway, for a trainer that takes leave."""
LEAD_S: Final = 3.0
"""The store, for a trainer that gives back its lead."""
STORE_S: Final = 5.0
"""Requests that write to a store server, when its client is closed."""
TRACKERS_S: Final = 60.0
"""Experiment trackers, for the metrics that they have not accepted yet."""

CONTAINED: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "PROCESS_S": (
        ("SEAL_S", "LEAVE_S"),  # trainer, the gateway is away
        ("LEAD_S", "STORE_S"),  # trainer, the store is away
        ("SEAL_S", "STORE_S"),  # runner
        ("GATEWAY_RECORDS_S", "STORE_S"),  # gateway
        ("SERVER_S", "STORE_S"),  # store server
        ("AGENT_LOOP_S", "TASKS_S", "INTERRUPTED_THREADS_S"),
    ),
    "THREADS_S": (("PROCESS_S",), ("INTERRUPTED_THREADS_S",)),
    "AGENT_LOOP_S": (("TASKS_S",),),
    "STOPPED_CALLS_S": (("LAST_ANSWER_S",),),
    "RECORDS_S": (("STOPPED_CALLS_S",), ("RETURNED_CALLS_S",)),
}
"""Names of waits that run one after the other within another one."""
