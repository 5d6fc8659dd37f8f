"""Pages of the rollouts of a store: filter, sort, count, search and sum.

`Reading` is the interface. `IndexedReading` answers from an index in a file of its own, which it builds
from the store piece by piece; `ScanReading` reads the whole store for every answer. `LogReader` follows
the log of a run. A library for plugins; it registers no hooks.
"""

from agl_reading._index import IndexedReading
from agl_reading._latency import Latency, latencies
from agl_reading._log import (
    LOG,
    REPORT,
    LogEvent,
    LoggedRun,
    LogReader,
    LogSink,
    RunRecord,
    RunStatus,
    is_alive,
    read_record,
)
from agl_reading._rows import (
    SORTS,
    Count,
    Cursor,
    Reading,
    RolloutRow,
    RowFilter,
    RowQuery,
    Sort,
    Sum,
    SumKind,
)
from agl_reading._scan import ScanReading
from agl_reading._services import ServiceLog, ServiceState, read_services
from agl_reading._spans import (
    AgentTotals,
    agent_totals,
    merge_calls,
    rewards_of,
    tokens_of,
    usage_of,
)
from agl_reading._summary import Summary, searchable, summarise
from agl_reading._words import holds, indexed, phrases

__all__ = [
    "LOG",
    "REPORT",
    "SORTS",
    "AgentTotals",
    "Count",
    "Cursor",
    "IndexedReading",
    "Latency",
    "LogEvent",
    "LogReader",
    "LogSink",
    "LoggedRun",
    "Reading",
    "RolloutRow",
    "RowFilter",
    "RowQuery",
    "RunRecord",
    "RunStatus",
    "ScanReading",
    "ServiceLog",
    "ServiceState",
    "Sort",
    "Sum",
    "SumKind",
    "Summary",
    "agent_totals",
    "holds",
    "indexed",
    "is_alive",
    "latencies",
    "merge_calls",
    "phrases",
    "read_record",
    "read_services",
    "rewards_of",
    "searchable",
    "summarise",
    "tokens_of",
    "usage_of",
]
