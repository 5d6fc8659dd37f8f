"""Random models of a few thousand weights in every form that is converted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors  # noqa: E402
from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging  # noqa: E402

from tests.trainers.torch.conftest import MARKERS, SPECIAL, TEMPLATE  # noqa: E402

logging.disable_progress_bar()
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "initializer_range": 0.3,
}
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def qwen_tokenizer() -> Any:
    """One token per byte, a merge, and Qwen's control tokens."""
    vocabulary = {text: number for number, text in enumerate([*ALPHABET, "th", *SPECIAL])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[("t", "h")],
        unk_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        extra_special_tokens=[SPECIAL[1]],
    )
    tokenizer.add_tokens(list(MARKERS))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def llama_tokenizer(rule: Any, *, bos: bool = False) -> Any:
    """One token per byte, a merge, and Llama's control tokens."""
    control = ["<|begin|>", "<|end|>", "<|turn|>"]
    vocabulary = {text: number for number, text in enumerate([*ALPHABET, "th", *control])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h")]))
    tokenizer.pre_tokenizer = rule
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(control)
    if bos:
        first = vocabulary["<|begin|>"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", first)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|end|>"
    )


def make_model(directory: Path, kind: str, *, tokenizer: Any = None, **config: Any) -> Path:
    """Write a random model, with biases and norms that are not those of a new one."""
    tokenizer = tokenizer or qwen_tokenizer()
    configuration, model = KINDS[kind]
    settings = {
        **SHAPE,
        **({"head_dim": 128} if kind == "qwen3" else {}),  # transformers reads no other from GGUF
        "vocab_size": len(tokenizer) + 3,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
        "tie_word_embeddings": False,
        **config,
    }
    torch.manual_seed(0)
    made = model(configuration(**settings))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / 4)
    made.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def edit(file: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
