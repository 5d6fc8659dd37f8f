"""The bytes of token ids, from the files of tokenizers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agl_streams import read_token_bytes

from agl_core.errors import StoreError

DEMO = Path(__file__).parents[3] / "examples" / "agl_demo" / "model" / "tokenizer.json"


@pytest.fixture
def pieces(tmp_path):
    def make(vocab, **fields):
        model = {"type": "BPE", "vocab": vocab, "merges": [], **fields.pop("model", {})}
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps({"version": "1.0", "model": model, **fields}))
        return read_token_bytes(path)

    return make


def test_byte_level_letters_are_bytes(pieces):
    found = pieces(
        {"Ġhello": 0, "Ċ": 1, "ðŁĺ": 2, "Ģ": 3},
        decoder={"type": "ByteLevel"},
        added_tokens=[{"id": 4, "content": "<|im_end|>", "special": True}],
    )
    assert [found.of(token) for token in range(5)] == [
        b" hello",
        b"\n",
        b"\xf0\x9f\x98",
        b"\x80",
        b"<|im_end|>",
    ]
    assert found.of(99) is None


def test_sentencepiece_with_bytes(pieces):
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    found = pieces(
        {"▁the": 0, "<0xE4>": 1, "ä": 2}, decoder={"type": "Sequence", "decoders": decoders}
    )
    assert [found.of(token) for token in range(3)] == [b" the", b"\xe4", "ä".encode()]


def test_unigram_and_metaspace(pieces):
    found = pieces([["<unk>", 0.0], ["▁a", -1.5]], decoder={"type": "Metaspace"})
    assert [found.of(token) for token in range(2)] == [b"<unk>", b" a"]


def test_word_pieces_join_words(pieces):
    found = pieces({"play": 0, "##ing": 1}, decoder={"type": "WordPiece", "prefix": "##"})
    assert [found.of(token) for token in range(2)] == [b" play", b"ing"]


def test_other_tokenizers_show_their_words(pieces):
    assert pieces({"yes": 0}).of(0) == b"yes"


def test_the_demos_tokenizer_decodes_its_own_template():
    found = read_token_bytes(DEMO)
    texts = [found.of(token) for token in range(2000)]
    assert b"<|im_start|>" in texts
    known = json.loads(DEMO.read_text())
    ids = {*known["model"]["vocab"].values(), *(each["id"] for each in known["added_tokens"])}
    assert {at for at, text in enumerate(texts) if text} == ids


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    for text in ("no json", "[]", '{"model": 3}'):
        path.write_text(text)
        with pytest.raises(StoreError, match=r"no tokenizer\.json"):
            read_token_bytes(path)
