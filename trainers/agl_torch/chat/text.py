"""Conversion of sampled tokens to text, incrementally or as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from agl_torch.chat._toolcalls import CLOSE, OPEN

_UNFINISHED = "\ufffd"


class Vocabulary:
    """The text of a tokenizer's tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        markers = {tokenizer.convert_tokens_to_ids(marker) for marker in (OPEN, CLOSE)}
        self._silent = frozenset(tokenizer.all_special_ids) - markers
        self.token = lru_cache(maxsize=None)(self._token)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens` without control tokens."""
        spoken = [token for token in tokens if token not in self._silent]
        return self._tokenizer.decode(spoken, clean_up_tokenization_spaces=False)

    def _token(self, token: int) -> str:
        """Return the text of one token, including control tokens."""
        return self._tokenizer.decode([token], clean_up_tokenization_spaces=False)

    def stopper(self, stops: Sequence[str]) -> Callable[[list[int]], bool] | None:
        """Return a function that tests whether an answer's newest token completes a stop string."""
        if not stops:
            return None
        # A token has at least one byte, so this many tokens contain any stop string that the newest
        # completes; the extra 4 allow for a character that starts before them.
        reach = max(len(stop.encode()) for stop in stops) + 4

        def stopped(tokens: list[int]) -> bool:
            text = self.decode(tokens[-reach:])
            return any(stop in text for stop in stops)

        return stopped


class Detokenizer:
    """Incremental decoder; its parts concatenate to the text of the whole answer."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokens: list[int] = []
        self._begin = 0
        self._end = 0

    def feed(self, tokens: Sequence[int]) -> str:
        """Return the text that `tokens` add; hold back characters with incomplete bytes."""
        self._tokens.extend(tokens)
        text = self._new_text()
        if text.endswith(_UNFINISHED):
            return ""
        self._begin, self._end = self._end, len(self._tokens)
        return text

    def finish(self) -> str:
        """Return the text that is still held back."""
        text = self._new_text()
        self._begin = self._end = len(self._tokens)
        return text

    def _new_text(self) -> str:
        # Decoded with the part before: some tokenizers treat the first token specially.
        known = self._vocabulary.decode(self._tokens[self._begin : self._end])
        return self._vocabulary.decode(self._tokens[self._begin :])[len(known) :]


class StopText:
    """Truncates an answer before the first stop string; holds back text that may start one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Return the text that certainly precedes any stop string."""
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
        """Return the text still held back: it did not become a stop string."""
        return "" if self.stopped else self._release(len(self._held))

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text


def _overlap(text: str, stop: str) -> int:
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
