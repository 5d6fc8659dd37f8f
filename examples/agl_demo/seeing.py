"""A vision model of about a hundred thousand weights: Qwen2-VL with the demo's vocabulary.

Its weights are random. `examples/10_images` trains it to name an image's colour.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoTokenizer, Qwen2VLConfig, Qwen2VLForConditionalGeneration

MARKS: Final = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

_TEXT_PART: Final = "{{- part if part is string else (part.text or '') -}}"
_ANY_PART: Final = """\
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
"""8 by 8 pixels are one token; an image has at most 16 tokens."""
_WIDTH: Final = 48


def make_seeing(*, seed: int = 0) -> tuple[Any, Any]:
    """Return a model with random weights, and its tokenizer."""
    tokenizer: Any = AutoTokenizer.from_pretrained(str(Path(__file__).with_name("model")))
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    tokenizer.chat_template = tokenizer.chat_template.replace(_TEXT_PART, _ANY_PART)
    torch.manual_seed(seed)
    model = Qwen2VLForConditionalGeneration(_config(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


def save_seeing(directory: Path, model: Any, tokenizer: Any) -> None:
    """Write a model with its tokenizer and image processor."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR))


def _config(tokenizer: Any) -> Qwen2VLConfig:
    """Return a configuration with two text layers and one vision layer."""
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(MARKS))
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
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 2, 2],
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
