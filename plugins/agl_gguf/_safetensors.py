"""Reading of safetensors files by numpy, which has no bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from agl_core.errors import ConfigError

_PREFIX_BYTES: Final = 8
_LARGEST_HEADER: Final = 100_000_000
"""Most bytes of a header, by the format's rule."""
_READ_AS: Final = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file; `read` loads it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """The format's own name, such as ``BF16``."""
    _file: Path
    _offset: int

    def read(self) -> Any:
        """Return the values as an array of float32."""
        count = int(np.prod(self.shape, dtype=np.int64))
        read_as = _READ_AS[self.dtype]
        stored = np.fromfile(self._file, read_as, count=count, offset=self._offset)
        if self.dtype == "BF16":  # the upper half of a float32
            stored = (stored.astype("<u4") << 16).view("<f4")
        return stored.astype(np.float32, copy=False).reshape(self.shape)


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Return the tensors of all ``*.safetensors`` files of a directory, by name.

    Raises:
        ConfigError: there is none, a file is damaged, or a tensor's dtype is not a float of 16 or
            32 bits.
    """
    found: dict[str, StoredTensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        found.update({tensor.name: tensor for tensor in _tensors(file)})
    if not found:
        raise ConfigError(
            f"{str(directory)!r} has no weights in *.safetensors: give the directory of a model"
        )
    return found


def _tensors(file: Path) -> Iterator[StoredTensor]:
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(_PREFIX_BYTES), "little")
            header = opened.read(size) if size <= _LARGEST_HEADER else b""
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        read = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in entries.items()}
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"Weights {str(file)!r} cannot be read: {error}") from error
    start, length = _PREFIX_BYTES + size, file.stat().st_size
    for name, entry in read.items():
        if entry.dtype not in _READ_AS:
            raise ConfigError(
                f"Tensor {name!r} in {str(file)!r} has the dtype {entry.dtype}, but only "
                f"{', '.join(_READ_AS)} are converted"
            )
        first, end = entry.data_offsets
        if start + end > length:
            raise ConfigError(f"Weights {str(file)!r} end before tensor {name!r}: copy them again")
        yield StoredTensor(name, entry.shape, entry.dtype, file, start + first)
