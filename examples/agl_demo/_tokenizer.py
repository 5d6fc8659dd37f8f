"""The demo's tokenizer: byte-level BPE trained on the shop's texts, with a chat template."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from tokenizers import pre_tokenizers
from transformers import Qwen2Tokenizer

from agl_demo._corpus import example

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<tools>",
    "</tools>",
    "<tool_response>",
    "</tool_response>",
)
"""Added tokens that are not special tokens: decoding keeps them in the text."""

CONTEXT_LENGTH = 1024
"""Maximum length of prompt and answer together, in tokens."""

_VOCAB_SIZE = 1024
_CORPUS_EXAMPLES = 20_000
_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def make_tokenizer(texts: Iterable[str]) -> Qwen2Tokenizer:
    """Train the tokenizer on texts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, END_OF_TEXT, TURN_START, TURN_END]
    blank = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        unk_token=END_OF_TEXT,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        extra_special_tokens=[TURN_START],
        model_max_length=CONTEXT_LENGTH,
    )
    tokenizer = blank.train_new_from_iterator(texts, vocab_size=_VOCAB_SIZE - len(MARKERS))
    tokenizer.add_tokens(list(MARKERS))
    tokenizer.chat_template = _TEMPLATE.read_text(encoding="utf-8")
    return tokenizer


def shop_texts(seed: int) -> list[str]:
    """Return the demo's prompts and answers, drawn with ``seed``."""
    rng = random.Random(seed)
    texts = ["system\n", "user\n", "assistant\n", "tool\n", "\nlookup(item)\n"]
    for _ in range(_CORPUS_EXAMPLES):
        messages, _tools, answer = example(rng)
        texts += [message["content"] for message in messages]
        texts.append(answer.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    return texts
