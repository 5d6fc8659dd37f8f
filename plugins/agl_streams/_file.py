"""One file per step and policy: a header that is an index of the calls, then the columns.

::

    bytes 0-3   b"AGLT"
    bytes 4-7   length of the header, little endian
    header      `StreamHeader`, as msgpack
    columns     32-bit numbers, little endian, at the offsets that the header states
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self, cast

import msgspec

from agl_core.errors import StoreError
from agl_core.types import Batch, Update

FORMAT: Final = 1
_START: Final = struct.Struct("<4sI")
_MAGIC: Final = b"AGLT"
_WIDTH: Final = 4
_NODES: Final = ("tokens", "parents")
_TERMS: Final = ("nodes", "targets", "advantages", "weights", "logprobs", "temperatures")
NUMBERS: Final = ("entropies", "before", "after")
"""Columns that only some engines give."""


class Column(msgspec.Struct, frozen=True, array_like=True):
    """Where a column is in the file."""

    code: str
    """``i`` or ``f``, as of `array.array`."""
    offset: int
    """Bytes after the header."""
    length: int


class StreamHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds; the lists have one entry per trained choice."""

    format: int = FORMAT
    policy: str
    step: int
    """As people count, from 1."""
    version: int
    """Version of the weights after the step."""
    call_ids: list[str]
    rollout_ids: list[str]
    """Empty for calls of no rollout, such as demonstrations."""
    agents: list[str]
    versions: list[int]
    """Version of the weights that sampled the call."""
    groups: list[int]
    ends: list[int]
    """Index after the last loss term of each choice; terms are in the order of choices."""
    stats: dict[str, float]
    columns: dict[str, Column]

    def numbers(self) -> list[str]:
        """Return the names of the columns that the engine gave."""
        return [name for name in NUMBERS if name in self.columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTokens:
    """The tokens of one trained choice of a call, and the numbers of those that were trained."""

    policy: str
    step: int
    version: int
    call_id: str
    rollout_id: str
    agent: str
    group: int
    sampled_by: int
    """Version of the weights that sampled it."""
    ids: array[int]
    """Prompt and answer up to the last token that was trained; ids below 0 are of images."""
    places: Sequence[int]
    """Index in `ids` of each trained token, ascending."""
    columns: Mapping[str, array[float]]
    """Name to one number per trained token; NaN where it was not computed."""


def stream_bytes(batch: Batch, update: Update, rollout_ids: Sequence[str]) -> bytes:
    """Return the content of a file.

    Args:
        batch: What was trained on.
        update: What became of it.
        rollout_ids: One per entry of ``batch.call_ids``.
    """
    order = sorted(range(len(batch.calls)), key=batch.calls.__getitem__)
    in_order = all(before <= after for before, after in pairwise(batch.calls))
    given: dict[str, Any] = {name: getattr(batch, name) for name in (*_NODES, *_TERMS)}
    if update.tokens is not None:
        found = {name: getattr(update.tokens, name) for name in NUMBERS}
        given |= {name: values for name, values in found.items() if _known(values, len(order))}
    ends, counts = list[int](), [0] * len(batch.call_ids)
    for call in batch.calls:
        counts[call] += 1
    for count in counts:
        ends.append((ends[-1] if ends else 0) + count)
    columns, parts, offset = dict[str, Column](), list[bytes](), 0
    for name, values in given.items():
        code = "i" if values.typecode == "i" else "f"
        ordered = values if name in _NODES or in_order else [values[at] for at in order]
        packed = _little(array(code, ordered))
        columns[name] = Column(code, offset, len(ordered))
        parts.append(packed)
        offset += len(packed)
    header = msgspec.msgpack.encode(
        StreamHeader(
            policy=batch.policy,
            step=batch.step + 1,
            version=update.version,
            call_ids=list(batch.call_ids),
            rollout_ids=list(rollout_ids),
            agents=list(batch.agents),
            versions=list(batch.versions),
            groups=batch.groups.tolist(),
            ends=ends,
            stats=batch.stats,
            columns=columns,
        )
    )
    return b"".join((_START.pack(_MAGIC, len(header)), header, *parts))


def _known(values: array[float], length: int) -> bool:
    """Return whether an engine gave a column; one of NaN alone says nothing."""
    return len(values) == length and any(value == value for value in values)  # noqa: PLR0124  NaN


def _little(values: array[Any]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


class TokenFile:
    """A file, whose columns are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            StoreError: the file is damaged or of a newer version.
            OSError: it cannot be read.
        """
        self.path = path
        with path.open("rb") as stream:
            start = stream.read(_START.size)
            try:
                magic, length = _START.unpack(start)
                self.header = msgspec.msgpack.decode(stream.read(length), type=StreamHeader)
            except (struct.error, msgspec.DecodeError) as error:
                raise StoreError(f"Token stream {path} is damaged: delete it ({error})") from error
        if magic != _MAGIC or self.header.format != FORMAT:
            raise StoreError(
                f"Token stream {path} has format {self.header.format}, but this version of agl-core "
                f"reads {FORMAT}: use the version that wrote it"
            )
        self._content = _START.size + length
        self._read: dict[str, array[Any]] = {}

    @classmethod
    def try_read(cls, path: Path) -> Self | None:
        """Return the file; None if it is gone or cannot be read."""
        try:
            return cls(path)
        except (OSError, StoreError):
            return None

    def call(self, call_id: str) -> list[CallTokens]:
        """Return the trained choices of a call; none if it is not in the file."""
        found = [at for at, each in enumerate(self.header.call_ids) if each == call_id]
        return [self.choice(at) for at in found]

    def choice(self, at: int) -> CallTokens:
        """Return the trained choice with an index.

        Raises:
            StoreError: the file is shorter than its header states.
        """
        header = self.header
        first = header.ends[at - 1] if at else 0
        terms = slice(first, header.ends[at])
        nodes = self.column("nodes")[terms]
        path = self._path(max(nodes)) if nodes else array("i")
        depths = {node: depth for depth, node in enumerate(path)}
        tokens, target = self.column("tokens"), self.column("targets")
        ids = array("i", [tokens[node] for node in path])
        if nodes:
            ids.append(target[terms.stop - 1])
        names = [name for name in header.columns if name not in (*_NODES, "nodes", "targets")]
        return CallTokens(
            policy=header.policy,
            step=header.step,
            version=header.version,
            call_id=header.call_ids[at],
            rollout_id=header.rollout_ids[at],
            agent=header.agents[at],
            group=header.groups[at],
            sampled_by=header.versions[at],
            ids=ids,
            places=[depths[node] + 1 for node in nodes],
            columns={name: self.column(name)[terms] for name in names},
        )

    def column(self, name: str) -> array[Any]:
        """Return a whole column.

        Raises:
            StoreError: the file is shorter than its header states.
        """
        if name not in self._read:
            column = self.header.columns[name]
            values: array[Any] = array(column.code)
            with self.path.open("rb") as stream:
                stream.seek(self._content + column.offset)
                content = stream.read(column.length * _WIDTH)
            if len(content) != column.length * _WIDTH:
                raise StoreError(f"Token stream {self.path} ends too early: delete it")
            values.frombytes(content)
            if sys.byteorder == "big":
                values.byteswap()
            self._read[name] = values
        return self._read[name]

    def _path(self, node: int) -> array[int]:
        parents, path = cast("array[int]", self.column("parents")), array("i")
        while node >= 0:
            path.append(node)
            node = parents[node]
        path.reverse()
        return path
