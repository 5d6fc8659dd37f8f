"""Directories with an adapter but without its base model, and merging the two."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from agl_core.errors import ConfigError, TrainingError
from agl_torch.models import load_model, without_progress_bars
from agl_torch.sources import ADAPTER, is_adapter

ADAPTER_FILE: Final = "adapter_model.safetensors"
PREFIX: Final = "base_model.model."
"""Prefix of every tensor name in an adapter's file."""
_BASE_FILE: Final = "base.json"
_CONFIG_FILE: Final = "adapter_config.json"
_RESUMABLE: Final = "training_state*"
_DOWN: Final = ".lora_A.weight"
_UP: Final = ".lora_B.weight"


def write_base(directory: Path, *, model: str, dtype: torch.dtype, **digests: str) -> None:
    """Write a file that identifies the weights an adapter was trained on.

    Args:
        directory: The adapter's directory.
        model: Directory or hub name of the base model.
        dtype: Dtype of the base model's served weights.
        digests: ``sha256`` of those weights, as `agl_torch._weights.fingerprint` computes it, or a
            digest that the engine defines.
    """
    base = {"model": model, "dtype": str(dtype).removeprefix("torch."), **digests}
    (directory / _BASE_FILE).write_text(json.dumps(base, indent=2) + "\n", encoding="utf-8")


def check_base(directory: Path, *, dtype: torch.dtype, sha256: str) -> None:
    """Check that an adapter was trained on these weights; skip weights of another dtype.

    Raises:
        TrainingError: it was trained on different weights.
    """
    check_digest(directory, "sha256", sha256, dtype=dtype)


def check_digest(
    directory: Path, name: str, digest: str, *, dtype: torch.dtype | None = None
) -> None:
    """Compare a digest with the one that `write_base` wrote; skip the check if either is missing.

    Raises:
        TrainingError: the digests differ.
    """
    file = directory / ADAPTER / _BASE_FILE
    base = json.loads(file.read_bytes()) if file.is_file() else {}
    written = base.get(name)
    if dtype is not None and base.get("dtype") != str(dtype).removeprefix("torch."):
        return
    if written and digest and written != digest:
        raise TrainingError(
            f"The adapter in {str(directory)!r} was trained on the weights of {base['model']!r} "
            f"with the {name} {written}, but these have {digest}: restore those weights"
        )


def read_adapter(directory: Path) -> dict[str, Tensor]:
    """Return an adapter's tensors under peft's names.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = directory / ADAPTER / ADAPTER_FILE
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"Adapter {str(path)!r} cannot be read: {error}") from error


def model_of(source: str) -> str:
    """Return `source`, or the base model if `source` is the directory of an adapter."""
    directory = Path(source)
    return model_of(_base_of(directory)["model"]) if is_adapter(directory) else source


def load_weights(source: str, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Load a model from a directory or the hub; merge the adapter if the directory has one.

    Raises:
        ConfigError: the model cannot be loaded.
    """
    directory = Path(source)
    if not is_adapter(directory):
        return load_model(source, dtype=dtype, device=device)
    model = load_weights(_base_of(directory)["model"], dtype=dtype, device=device)
    merge(model, directory)
    return model


@torch.no_grad()
def merge(model: PreTrainedModel, directory: Path) -> int:
    """Add an adapter's products to the weights of its layers, in float32.

    Returns:
        The number of layers of which at least one weight has changed.
    """
    config = json.loads((directory / ADAPTER / _CONFIG_FILE).read_bytes())
    scale = config["lora_alpha"] / config["r"]
    tensors = read_adapter(directory)
    changed = 0
    for name in tensors:
        if not name.endswith(_DOWN):
            continue
        layer = name.removesuffix(_DOWN)
        weight = model.get_parameter(f"{layer.removeprefix(PREFIX)}.weight")
        down, up = (tensors[f"{layer}.lora_{side}.weight"].to(weight.device) for side in "AB")
        total = (weight.float() + (up @ down) * scale).to(weight.dtype)
        changed += not torch.equal(total, weight)
        weight.copy_(total)
    return changed


def export(source: Path, target: Path, *, may_equal_base: bool = False) -> None:
    """Write a saved policy as a directory that transformers and vLLM load, with the adapter merged.

    The directory also keeps the adapter, so that a run with LoRA can load it. If an error is
    raised, nothing was written.

    Args:
        source: The policy's directory in a checkpoint.
        target: Created if missing.
        may_equal_base: Also write merged weights that are equal to those of the base model.

    Raises:
        ConfigError: the adapter's base model is not found, or merging changes no weight of it.
    """
    model = None
    if is_adapter(source):
        base = _base_of(source)
        dtype: Any = getattr(torch, base["dtype"])
        model = load_weights(base["model"], dtype=dtype, device=torch.device("cpu"))
        if not merge(model, source) and not may_equal_base:
            raise ConfigError(_unchanged(source, base))
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(_RESUMABLE))
    if model is not None:
        with without_progress_bars():
            model.save_pretrained(target)


def _unchanged(source: Path, base: dict[str, str]) -> str:
    tensors = read_adapter(source)
    ups = [tensor for name, tensor in tensors.items() if name.endswith(_UP)]
    if not any(bool(tensor.any()) for tensor in ups):
        return (
            f"The adapter in {str(source)!r} is untouched: no update has changed it, so its weights "
            f"are those of {base['model']!r}. Export a later checkpoint, or use that model"
        )
    return (
        f"The adapter in {str(source)!r} is lost when it is merged: in {base['dtype']} its sums are "
        f"the weights of {base['model']!r}. Serve the adapter by itself (agl export RUN DIRECTORY "
        f"--format adapter), or train with engine.dtype = 'float32'"
    )


def _base_of(directory: Path) -> dict[str, str]:
    file = directory / ADAPTER / _BASE_FILE
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{str(directory)!r} holds an adapter, but {_BASE_FILE} does not say of what model "
            f"({error}): take a checkpoint's directory whole"
        ) from error
