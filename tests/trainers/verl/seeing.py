"""A model of random weights that sees, and pictures to show it."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import torch
from agl_demo.seeing import MARKS, make_seeing, save_seeing
from PIL import Image

DEMO: Final = Path(__file__).parents[3] / "examples" / "agl_demo" / "model"
_LOUD: Final = 0.5
_SPREAD: Final = 5.0
"""By which weights are larger than new ones, so that what is shown matters to what is said."""


def make_seeing_model(directory: str | Path, *, seed: int = 0) -> str:
    """Save such a model; gives the directory."""
    model, tokenizer = make_seeing(seed=seed)
    _spread(model)
    _hush(model, tokenizer.convert_tokens_to_ids(list(MARKS)))
    save_seeing(Path(directory), model, tokenizer)
    return str(directory)


def data_url(color: str, size: tuple[int, int] = (16, 24)) -> str:
    """A PNG of one colour; `size` is width and height."""
    content = BytesIO()
    Image.new("RGB", size, color).save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


@torch.no_grad()
def _spread(model: Any) -> None:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(_SPREAD)


@torch.no_grad()
def _hush(model: Any, marks: list[int]) -> None:
    """Keep it from saying marks, as training keeps real models: one dimension, which all words
    share, makes them unlikely."""
    model.get_input_embeddings().weight[:, 0] = _LOUD
    for layer in model.model.language_model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    head = model.get_output_embeddings().weight
    head[:, 0] = 0.0
    head[marks] = 0.0
    head[marks, 0] = -20.0
