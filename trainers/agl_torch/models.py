"""Models and tokenizers from a directory or the hub, with errors that name the fix."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from agl_core.errors import ConfigError
from agl_torch.sources import check_source

_LOADING: Final = Lock()
"""While transformers loads a model, it replaces functions of torch for the whole process."""


def load_model(source: str, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A causal language model in evaluation mode, without gradients.

    Raises:
        ConfigError: there is no such model.
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
    """The tokenizer beside a model.

    Raises:
        ConfigError: there is none.
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
    """Longest sequence: what the model was built for, or less if wanted.

    Raises:
        ConfigError: more is wanted, or neither says anything.
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
    """Tokens that end an answer, by the model's settings and the tokenizer's."""
    generation = getattr(model, "generation_config", None)
    ends: set[int] = set()
    for holder in (generation, model.config, tokenizer):
        value = getattr(holder, "eos_token_id", None)
        if value is not None:
            ends.update([value] if isinstance(value, int) else value)
    return frozenset(ends)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@contextmanager
def without_progress_bars() -> Generator[None]:
    """Keep transformers' progress bars out of the program's own display."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
