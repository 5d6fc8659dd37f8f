"""Conversion of a quantised GGUF file to a directory of bfloat16 weights."""

from __future__ import annotations

import io
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agl_core.errors import MissingExtraError


def require_gguf() -> None:
    """Raise MissingExtraError unless the package that reads GGUF is installed."""
    if find_spec("gguf") is None:
        raise MissingExtraError("demo", needs="gguf>=0.10", extra="smollm2")


def convert(source: Path, target: Path) -> None:
    """Read model, tokenizer and chat template from `source` and write them to `target`."""
    import torch  # noqa: PLC0415
    from agl_torch.models import without_progress_bars  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    where: dict[str, Any] = {"gguf_file": source.name}
    with without_progress_bars(), _bars_on_terminals_only():
        tokenizer = AutoTokenizer.from_pretrained(str(source.parent), **where)
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(source.parent),
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            **where,
        )
        _forget_quantisation(model)
        model = model.to(torch.bfloat16)
        model.config.dtype = torch.bfloat16
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.generation_config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


def _bars_on_terminals_only() -> AbstractContextManager[object]:
    """Hide a progress bar that transformers cannot disable, unless stderr is a terminal."""
    return nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())


def _forget_quantisation(model: Any) -> None:
    """Delete attributes that would make transformers refuse to save the dequantised weights."""
    for mark in ("hf_quantizer", "quantization_method", "is_quantized"):
        if mark in vars(model):
            delattr(model, mark)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
