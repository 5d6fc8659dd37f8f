"""Weights of a checkpoint in the form that another program loads."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

import msgspec

from agl_core.app import engine_class
from agl_core.config import RESOLVED
from agl_core.errors import ConfigError
from agl_core.files import write_private
from agl_core.interfaces import Engine
from agl_core.plugins import PluginManager
from agl_core.training import verify

POLICIES: Final = "policies"
"""Folder of a checkpoint with a folder of weights per policy."""
_ADAPTER: Final = "adapter"
_ADAPTER_FILE: Final = "adapter_model.safetensors"
_BASE_FILE: Final = "base.json"
_PREFIX_BYTES: Final = 8


class _Entry(msgspec.Struct):
    data_offsets: tuple[int, int]


class _Base(msgspec.Struct):
    model: str


@dataclass(frozen=True, slots=True)
class WeightsExport:
    """What to write of a checkpoint's weights."""

    form: Literal["hf", "adapter", "gguf"]
    dtype: str | None
    """Of a GGUF file's matrices; None: that of the weights."""
    policies: Sequence[str]
    """Names; empty: all."""

    def write(self, checkpoint: Path, directory: Path, plugins: PluginManager) -> Iterator[str]:
        """Write each policy, and yield what was written.

        Raises:
            TrainingError: a file of the checkpoint is damaged.
            ConfigError: there are no such weights, or they are equal to those of the base model.
            MissingExtraError: a library that the form needs is not installed.
        """
        if self.dtype is not None and self.form != "gguf":
            raise ConfigError(
                f"--dtype is for --format gguf; --format {self.form} keeps that of the weights"
            )
        state = asyncio.run(verify(checkpoint))
        # The engine of a plugin file is not loaded; its directory is copied.
        known = state.engine in plugins.registry("engines")
        engine = engine_class(state.engine, plugins) if known else Engine
        sources = self._sources(checkpoint)
        try:
            for source in sources:
                yield self._written(engine, source, directory)
            config = checkpoint.resolve().parents[1] / RESOLVED
            if self.form == "hf" and config.is_file():
                # `agl.evaluate` then accepts the directory as a checkpoint.
                write_private(directory / RESOLVED, config.read_bytes())
        except OSError as error:
            said = error.strerror or error
            raise ConfigError(f"Cannot write weights to {str(directory)!r}: {said}") from error

    def _written(self, engine: type[Engine], source: Path, directory: Path) -> str:
        """Write one policy, and return what was written."""
        target = directory / source.name
        if self.form == "adapter":
            return f"{target}: adapter of {_export_adapter(source, target)}, from {source}"
        if self.form == "gguf":
            file = target.with_name(f"{source.name}.gguf")
            _export_gguf(engine, source, file, self.dtype)
            return f"{file}: weights of {source}"
        asyncio.run(engine.export(str(source), str(target)))
        return f"{target}: weights of {source}"

    def _sources(self, checkpoint: Path) -> list[Path]:
        found = sorted(path for path in (checkpoint / POLICIES).glob("*") if path.is_dir())
        if not found:
            raise ConfigError(
                f"Checkpoint {checkpoint} holds no weights; agl export RUN --prompts DIR writes "
                f"prompts"
            )
        names = [path.name for path in found]
        if unknown := sorted(set(self.policies) - set(names)):
            raise ConfigError(f"Checkpoint {checkpoint} has no policy {unknown}; it has {names}")
        return [path for path in found if not self.policies or path.name in self.policies]


def _export_adapter(source: Path, target: Path) -> str:
    """Copy a policy's adapter and tokenizer, and return the name of the adapter's base model."""
    adapter = source / _ADAPTER
    if not (adapter / _ADAPTER_FILE).is_file():
        raise ConfigError(
            f"Policy {source.name!r} has no adapter: all its weights were trained (engine.lora is "
            f"none). Leave out --format adapter"
        )
    base = msgspec.json.decode((adapter / _BASE_FILE).read_bytes(), type=_Base).model
    if is_untouched(adapter / _ADAPTER_FILE):
        raise ConfigError(
            f"The adapter in {str(source)!r} is untouched: no update has changed it, so its weights "
            f"are those of {base!r}. Export a later checkpoint, or use that model"
        )
    target.mkdir(parents=True, exist_ok=True)
    ignored = shutil.ignore_patterns("training_state*", _ADAPTER)
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignored)
    shutil.copytree(adapter, target, dirs_exist_ok=True)
    return base


def _export_gguf(engine: type[Engine], source: Path, file: Path, dtype: str | None) -> None:
    from agl_gguf import require_gguf  # noqa: PLC0415

    require_gguf()  # before weights are merged
    from agl_gguf import write_gguf  # noqa: PLC0415  it needs what the extra brings

    with TemporaryDirectory(prefix="agl-export-") as merged:
        asyncio.run(engine.export(str(source), merged))
        write_gguf(Path(merged), file, dtype=dtype)


def is_untouched(file: Path) -> bool:
    """Whether an adapter's products are zero, as those of a new one: its second matrices are.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(_PREFIX_BYTES), "little")
            header = msgspec.json.decode(opened.read(size), type=dict[str, msgspec.Raw])
            for name, raw in header.items():
                if ".lora_B." not in name:
                    continue
                first, end = msgspec.json.decode(raw, type=_Entry).data_offsets
                opened.seek(_PREFIX_BYTES + size + first)
                if any(opened.read(end - first)):
                    return False
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"Adapter {str(file)!r} cannot be read: {error}") from error
    return True
