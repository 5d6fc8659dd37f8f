"""A model of some ten thousand weights that sees: Qwen2-VL's kind, with the demo's words."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen2VLConfig, Qwen2VLForConditionalGeneration

DEMO: Final = Path(__file__).parents[3] / "examples" / "agl_demo" / "model"
MARKS: Final = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

_TEXT_PART = "{{- part if part is string else (part.text or '') -}}"
_ANY_PART = """\
{%- if part is not string and part.type in ['image', 'image_url'] -%}
        {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
      {%- else -%}
        {{- part if part is string else (part.text or '') -}}
      {%- endif -%}"""
_PROCESSOR: Final = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 4,
    "temporal_patch_size": 1,
    "merge_size": 2,
    "size": {"shortest_edge": 64, "longest_edge": 1024},
}
"""8 by 8 pixels are one token; an image has 16 of them at most."""
_WIDTH: Final = 32
_LOUD: Final = 0.5


def make_seeing_model(directory: str | Path, *, seed: int = 0) -> str:
    """Save a model of random weights, its tokenizer and image processor; gives the directory."""
    tokenizer = AutoTokenizer.from_pretrained(str(DEMO))
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    assert _TEXT_PART in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(_TEXT_PART, _ANY_PART)
    marks = tokenizer.convert_tokens_to_ids(list(MARKS))
    torch.manual_seed(seed)
    model = Qwen2VLForConditionalGeneration(_config(tokenizer, marks))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    _hush(model, marks)
    target = Path(directory)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    (target / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR))
    return str(target)


def data_url(color: str, size: tuple[int, int] = (16, 24)) -> str:
    """A PNG of one colour; `size` is width and height."""
    content = BytesIO()
    Image.new("RGB", size, color).save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def _config(tokenizer: Any, marks: list[int]) -> Qwen2VLConfig:
    start, end, image, video = marks
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    return Qwen2VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": _WIDTH,
            "intermediate_size": 2 * _WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 1024,
            "initializer_range": 0.1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [1, 1, 2],
            },
            "pad_token_id": tokenizer.pad_token_id,
            **ids,
        },
        vision_config={
            "depth": 1,
            "embed_dim": _WIDTH,
            "hidden_size": _WIDTH,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": 4,
            "temporal_patch_size": 1,
            "spatial_merge_size": 2,
        },
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
        tie_word_embeddings=False,
        **ids,
    )


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
