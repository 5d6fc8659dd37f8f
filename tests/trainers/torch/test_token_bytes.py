"""The bytes of token ids, as they are read without transformers, against transformers."""

from __future__ import annotations

from pathlib import Path

from agl_streams import read_token_bytes

TEXTS = [
    "Hello you",
    " two  spaces\n\tand a tab",
    "naïve 😀 数学 שלום",
    "<tool_call>{}</tool_call><|im_end|>",
]


def test_they_join_to_what_the_tokenizer_decodes(tokenizer, model_path):
    found = read_token_bytes(Path(model_path) / "tokenizer.json")
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        assert b"".join(found.of(token) for token in ids).decode() == decoded == text
    special = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert found.of(special) == b"<|im_end|>"
