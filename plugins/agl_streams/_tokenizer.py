"""The bytes of token ids, from a ``tokenizer.json``: no other library is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from agl_core.errors import StoreError

_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE: Final = "\u2581"
"""SentencePiece's letter for a space."""


class _Added(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]] = {}
    byte_fallback: bool = False


class _Tokenizer(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = []
    decoder: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


class TokenBytes:
    """The bytes of each token id; several tokens may share a character."""

    def __init__(self, tokenizer: _Tokenizer) -> None:
        self._added = {each.id: each.content for each in tokenizer.added_tokens}
        vocab = tokenizer.model.vocab
        pairs = (
            vocab.items() if isinstance(vocab, dict) else ((t[0], i) for i, t in enumerate(vocab))
        )
        self._texts = {number: text for text, number in pairs}
        parts = [*_parts(tokenizer.decoder), *_parts(tokenizer.pre_tokenizer)]
        kinds = {part.get("type") for part in parts}
        self._bytes = _byte_level() if "ByteLevel" in kinds else {}
        self._fallback = tokenizer.model.byte_fallback or "ByteFallback" in kinds
        self._spaces = "Metaspace" in kinds or any(
            part.get("type") == "Replace" and _SPACE in str(part.get("pattern")) for part in parts
        )
        words = [part for part in parts if part.get("type") == "WordPiece"]
        self._within = str(words[0].get("prefix", "##")) if words else ""

    def of(self, token: int) -> bytes | None:
        """Return a token's bytes; None for an id that is not in the vocabulary."""
        if token in self._added:
            return self._added[token].encode("utf-8", "replace")
        text = self._texts.get(token)
        if text is None:
            return None
        if self._bytes:
            return b"".join(_encoded(self._bytes, letter) for letter in text)
        if self._fallback and (match := _BYTE.fullmatch(text)):
            return bytes.fromhex(match[1])
        if self._spaces:
            text = text.replace(_SPACE, " ")
        if self._within:
            text = text.removeprefix(self._within) if text.startswith(self._within) else f" {text}"
        return text.encode("utf-8", "replace")


def read_token_bytes(path: Path) -> TokenBytes:
    """Read a ``tokenizer.json``.

    Raises:
        StoreError: it is not one.
        OSError: it cannot be read.
    """
    try:
        return TokenBytes(msgspec.json.decode(path.read_bytes(), type=_Tokenizer))
    except msgspec.DecodeError as error:
        raise StoreError(
            f"{path} is no tokenizer.json of a Hugging Face tokenizer: {error}"
        ) from error


def _parts(given: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return a decoder or pre-tokenizer and those that it is made of."""
    if given is None:
        return []
    inner: list[Mapping[str, Any]] = given.get("decoders") or given.get("pretokenizers") or []
    return [given, *(part for each in inner for part in _parts(each))]


def _encoded(table: Mapping[str, int], letter: str) -> bytes:
    byte = table.get(letter)
    return letter.encode("utf-8", "replace") if byte is None else bytes((byte,))


def _byte_level() -> dict[str, int]:
    """Return the byte of each letter of byte-level BPE.

    Printable bytes of Latin-1 stand for themselves; the others follow from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return table | {chr(0x100 + at): byte for at, byte in enumerate(others)}
