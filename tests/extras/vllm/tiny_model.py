"""A random model that vLLM can serve, adapters for it, and what they make of a sequence.

Heads have 64 dimensions, of the sizes that vLLM's attention knows on a CPU. The tokenizer has one
token per byte and is a `Qwen2Tokenizer`, since that is what ``AutoTokenizer`` makes of any tokenizer
beside a Qwen2 model. The output head is its own, since a tied one would stay old in a reload.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.utils import logging

CONTEXT_LENGTH = 512
RANK = 8
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- for tool in tools %}{{- (tool | tojson) + '\\n' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'developer' %}{{- raise_exception('Nobody develops here') }}{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

logging.disable_progress_bar()
torch.set_num_threads(1)


def make_model(directory: Path, *, seed: int, tied: bool = False) -> str:
    """Write random weights and the tokenizer; returns the directory."""
    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    shape = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.1,
    )
    Qwen2ForCausalLM(shape).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def make_tokenizer() -> Qwen2Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate([*alphabet, *CONTROL])},
        merges=[],
        unk_token=CONTROL[0],
        eos_token=CONTROL[2],
        pad_token=CONTROL[0],
        extra_special_tokens=[CONTROL[1]],
        model_max_length=CONTEXT_LENGTH,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_adapter(model: str, directory: Path, *, seed: int, rank: int = RANK) -> str:
    """Write a random adapter in PEFT's format; returns the directory."""
    torch.manual_seed(seed)
    parts = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=rank, lora_alpha=6 * rank, target_modules=parts, init_lora_weights=False)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    get_peft_model(base, config).save_pretrained(directory)
    return str(directory)


class Weights:
    """Weights as transformers computes with them, in float32."""

    def __init__(self, model: str, adapter: str = "") -> None:
        module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        if adapter:
            module = PeftModel.from_pretrained(module, adapter)
        self._module = module.eval()

    def logprobs(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """Of the answer's tokens at temperature 1."""
        with torch.no_grad():
            logits = self._module(input_ids=torch.tensor([[*prompt, *answer]])).logits[0]
        rows = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
        return rows[torch.arange(len(answer)), torch.tensor(answer)].tolist()

    def distance(
        self, prompt: Sequence[int], answer: Sequence[int], logprobs: Sequence[float]
    ) -> float:
        """Largest difference of log-probabilities that somebody else gives."""
        mine = self.logprobs(prompt, answer)
        return max(abs(a - b) for a, b in zip(mine, logprobs, strict=True))
