"""Writers of rows: lines of JSON, or Parquet."""

from __future__ import annotations

from importlib import import_module
from typing import IO, Any, Final, Protocol

import msgspec

from agl_core.errors import MissingExtraError
from agl_core.plugins import CORE
from agl_core.plugins.requirements import requirement_text, requirements
from agl_core.text import json_bytes, replaced
from agl_records._rows import TrajectoryRow

_EXTRA: Final = "parquet"
_ROWS_PER_GROUP: Final = 256


class RowWriter(Protocol):
    """A writer that takes rows one by one."""

    def write(self, row: Any) -> None: ...

    def close(self) -> None:
        """Write the remaining rows; the stream stays open."""
        ...


class JsonLines:
    """A writer of one JSON document per line, UTF-8."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, row: Any) -> None:
        self._stream.write(json_bytes(row) + b"\n")

    def close(self) -> None:
        return


class Parquet:
    """A writer of row groups of `TrajectoryRow`; messages and tools are JSON texts."""

    def __init__(self, stream: IO[bytes]) -> None:
        """Open a Parquet writer on the stream.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        self._arrow, parquet = _pyarrow()
        self._schema = _schema(self._arrow)
        self._writer: Any = parquet.ParquetWriter(stream, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def write(self, row: TrajectoryRow) -> None:
        columns = _columns(row)
        columns["messages"] = json_bytes(row.messages).decode()
        columns["tools"] = json_bytes(row.tools).decode()
        columns["status"] = row.status.value
        for name, structs in (("calls", row.calls), ("rewards", row.rewards)):
            columns[name] = [_columns(each) for each in structs]
        self._rows.append(columns)
        if len(self._rows) >= _ROWS_PER_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, self._schema))
            self._rows = []


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        needs = ", ".join(map(requirement_text, requirements(CORE, _EXTRA))) or "pyarrow"
        raise MissingExtraError(_EXTRA, needs=needs, extra=_EXTRA) from error


def _schema(arrow: Any) -> Any:
    text, whole, real = arrow.string(), arrow.int64(), arrow.float64()
    call = {
        "call_id": text,
        "agent_run_id": text,
        "choice": whole,
        "continued": arrow.bool_(),
        "prompt_tokens": whole,
        "response_tokens": whole,
        "finish_reason": text,
        "temperature": real,
        "logprobs_mode": text,
        "policy_version": whole,
        "reward": real,
    }
    reward = {
        **dict.fromkeys(("channel", "why", "source", "call", "agent_run", "agent"), text),
        "value": real,
        "choice": whole,
    }
    names = ("run_id", "rollout_id", "attempt_id", "group_id", "task_id", "mode")
    columns = {
        **dict.fromkeys(names, text),
        "step": whole,
        **dict.fromkeys(("status", "agent", "alias", "policy"), text),
        **dict.fromkeys(("reward", "score"), real),
        "rewards": arrow.list_(arrow.struct(list(reward.items()))),
        **dict.fromkeys(("messages", "tools"), text),
        **dict.fromkeys(("token_ids", "call_index"), arrow.list_(arrow.int32())),
        "logprobs": arrow.list_(real),
        "calls": arrow.list_(arrow.struct(list(call.items()))),
    }
    return arrow.schema(list(columns.items()))


def _columns(row: msgspec.Struct) -> dict[str, Any]:
    return {name: _storable(value) for name, value in msgspec.structs.asdict(row).items()}


def _storable(value: Any) -> Any:
    return replaced(value) if isinstance(value, str) else value
