"""Sampled tokens to text, token by token or all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from agl_torch.chat.toolcalls import CLOSE, OPEN

_UNFINISHED = "\ufffd"


class Vocabulary:
    """What the tokens of a tokenizer mean as text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        markers = {tokenizer.convert_tokens_to_ids(marker) for marker in (OPEN, CLOSE)}
        self._silent = frozenset(tokenizer.all_special_ids) - markers
        self.token = lru_cache(maxsize=None)(self._token)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`; control tokens have none."""
        spoken = [token for token in tokens if token not in self._silent]
        return self._tokenizer.decode(spoken, clean_up_tokenization_spaces=False)

    def _token(self, token: int) -> str:
        """Text of one token by itself, control tokens spelled out."""
        return self._tokenizer.decode([token], clean_up_tokenization_spaces=False)

    def stopper(self, stops: Sequence[str]) -> Callable[[list[int]], bool] | None:
        """A test whether the newest of an answer's tokens completes one of `stops`."""
        if not stops:
            return None
        # A token holds at least one byte, so this many tokens hold any stop string that the newest
        # completes; the rest lets a character begin before them.
        reach = max(len(stop.encode()) for stop in stops) + 4

        def stopped(tokens: list[int]) -> bool:
            text = self.decode(tokens[-reach:])
            return any(stop in text for stop in stops)

        return stopped


class Detokenizer:
    """Text of a growing answer, in stretches that add up to the text of the whole."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokens: list[int] = []
        self._begin = 0
        self._end = 0

    def feed(self, tokens: Sequence[int]) -> str:
        """Text that `tokens` add; characters whose bytes are still incomplete wait."""
        self._tokens.extend(tokens)
        text = self._new_text()
        if text.endswith(_UNFINISHED):
            return ""
        self._begin, self._end = self._end, len(self._tokens)
        return text

    def finish(self) -> str:
        """Text of what still waits."""
        text = self._new_text()
        self._begin = self._end = len(self._tokens)
        return text

    def _new_text(self) -> str:
        # Decoded together with the stretch before: some tokenizers treat a beginning specially.
        known = self._vocabulary.decode(self._tokens[self._begin : self._end])
        return self._vocabulary.decode(self._tokens[self._begin :])[len(known) :]


class StopText:
    """Cuts an answer before the first stop string, holding back what may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Text that is certainly before any stop string."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        self._held += text
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._release(min(found))
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        return self._release(len(self._held) - keep)

    def finish(self) -> str:
        """Text still held: no stop string came of it."""
        return "" if self.stopped else self._release(len(self._held))

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text


def _overlap(text: str, stop: str) -> int:
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
