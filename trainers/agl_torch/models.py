"""Loading models and tokenizers from a directory or the hub."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from agl_core.errors import ConfigError
from agl_torch.sources import check_source

_LOADING: Final = Lock()
"""Held while transformers loads a model: it patches torch functions for the whole process."""


def load_model(source: str, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Load a causal language model in evaluation mode, without gradients.

    Raises:
        ConfigError: the model cannot be loaded.
    """
    check_source(source)
    with _LOADING, without_progress_bars():
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                source, dtype=dtype, attn_implementation="sdpa"
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise ConfigError(
                f"Model {source!r} cannot be loaded ({_first_line(error)}): give the directory of a "
                f"Hugging Face causal language model, or its name on the hub"
            ) from error
    return model.to(device).eval().requires_grad_(requires_grad=False)


def load_tokenizer(source: str) -> Any:
    """Load the tokenizer from a model's directory or hub name.

    Raises:
        ConfigError: the tokenizer cannot be loaded.
    """
    check_source(source)
    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Tokenizer of {source!r} cannot be loaded ({_first_line(error)}): save one into the "
            f"model's directory with tokenizer.save_pretrained()"
        ) from error


def context_length(config: Any, *, wanted: int | None) -> int:
    """Return the maximum sequence length: `wanted`, or the model's own limit if None.

    Raises:
        ConfigError: `wanted` exceeds the model's limit, or both are missing.
    """
    own: int | None = getattr(config, "max_position_embeddings", None)
    if wanted is None:
        if own is None:
            raise ConfigError(
                f"Model type {config.model_type!r} names no context length: "
                f"set engine.max_model_len"
            )
        return own
    if own is not None and wanted > own:
        raise ConfigError(
            f"engine.max_model_len is {wanted}, but the model's context holds {own} tokens: "
            f"set at most that"
        )
    return wanted


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the end-of-sequence tokens of the model's configurations and the tokenizer."""
    return _ends_of(getattr(model, "generation_config", None), model.config, tokenizer)


def end_tokens_of(source: str, tokenizer: Any) -> frozenset[int]:
    """Return the `end_tokens` that a model's files name, without loading its weights."""
    holders: list[Any] = [tokenizer]
    for kind in (AutoConfig, GenerationConfig):
        try:
            holders.append(kind.from_pretrained(source))
        except (OSError, ValueError):  # an adapter's directory has neither file
            continue
    return _ends_of(*holders)


def _ends_of(*holders: Any) -> frozenset[int]:
    ends: set[int] = set()
    for holder in holders:
        value = getattr(holder, "eos_token_id", None)
        if value is not None:
            ends.update([value] if isinstance(value, int) else value)
    return frozenset(ends)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@contextmanager
def without_progress_bars() -> Generator[None]:
    """Disable transformers' progress bars, which would disturb the program's display."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
