"""Tokens as a page draws them: pieces of text in whole characters, and a number of each token."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agl_streams import CallTokens

from agl_core.types import Choice, ModelCall
from agl_dashboard._text import visible

BytesOf = Callable[[int], "bytes | None"]
"""The bytes of a token id; None if they are not known."""

CONTEXT: Final = 0
SAMPLED: Final = 1
TRAINED: Final = 2
"""What a token is to training: not sampled in this call, sampled, or with a weight in the loss."""
MEASURES: Final[Mapping[str, str]] = {
    "logprob": "Log-probability",
    "advantage": "Advantage",
    "entropy": "Entropy",
    "mismatch": "Mismatch",
    "ratio": "Ratio",
}
_CONTINUES: Final = range(0x80, 0xC0)
"""Bytes that continue a character of UTF-8."""
_FIRST_ASTRAL: Final = 0x10000
_EMPTY: Final = "\u2205"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPath:
    """The tokens of one choice of a call, by the gateway's record and the trainer's stream."""

    ids: Sequence[int]
    first: int
    """Index of the first sampled token."""
    logprobs: Sequence[float]
    """One per sampled token; empty if not recorded."""
    stream: CallTokens | None

    @classmethod
    def of(
        cls, call: ModelCall | None, choice: Choice | None, streams: Sequence[CallTokens]
    ) -> CallPath | None:
        """Return the tokens of a choice; None if neither record nor stream has any."""
        if call is not None and choice is not None and choice.token_ids:
            ids = call.prompt_token_ids + choice.token_ids
            first = len(call.prompt_token_ids)
            stream = next((each for each in streams if _fits(each, ids, first)), None)
            whole = choice.logprobs if len(choice.logprobs) == len(choice.token_ids) else ()
            return cls(ids=ids, first=first, logprobs=whole, stream=stream)
        if streams and streams[0].places:
            stream = streams[0]
            first = stream.places[0]
            logprobs = [math.nan] * (len(stream.ids) - first)
            for place, value in zip(stream.places, stream.columns["logprobs"], strict=True):
                logprobs[place - first] = value
            return cls(ids=stream.ids, first=first, logprobs=logprobs, stream=stream)
        return None

    def states(self) -> list[list[int]]:
        """Return runs of tokens of one state: pairs of state and length."""
        trained = set(self._trained())
        runs: list[list[int]] = [[CONTEXT, self.first]] if self.first else []
        for at in range(self.first, len(self.ids)):
            state = TRAINED if at in trained else SAMPLED
            if runs and runs[-1][0] == state:
                runs[-1][1] += 1
            else:
                runs.append([state, 1])
        return runs

    def measures(self) -> dict[str, list[float | None]]:
        """Return what is known of the sampled tokens, by measure; None where a number is not."""
        found: dict[str, list[float | None]] = {}
        if self.logprobs:
            found["logprob"] = [_short(value) for value in self.logprobs]
        if self.stream is None:
            return found
        columns = self.stream.columns
        found["advantage"] = self._spread(columns["advantages"])
        if "entropies" in columns:
            found["entropy"] = self._spread(columns["entropies"])
        if "before" in columns:
            pairs = zip(columns["before"], columns["logprobs"], strict=True)
            found["mismatch"] = self._spread(now - then for now, then in pairs)
        if "before" in columns and "after" in columns:
            pairs = zip(columns["after"], columns["before"], strict=True)
            ratios = self._spread(_exp(after - before) for after, before in pairs)
            if any(value is not None for value in ratios):
                found["ratio"] = ratios
        return found

    def _trained(self) -> Iterable[int]:
        return () if self.stream is None else self.stream.places

    def _spread(self, values: Iterable[float]) -> list[float | None]:
        """Return numbers of the trained tokens as numbers of the sampled ones."""
        spread: list[float | None] = [None] * (len(self.ids) - self.first)
        for place, value in zip(self._trained(), values, strict=True):
            spread[place - self.first] = _short(value)
        return spread


def _fits(stream: CallTokens, ids: Sequence[int], first: int) -> bool:
    return bool(stream.places) and all(
        first <= place < len(ids) and ids[place] == stream.ids[place] for place in stream.places
    )


def _short(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def drawn(path: CallPath, bytes_of: BytesOf | None) -> dict[str, Any]:
    """Return what the page's script draws, as plain data.

    ``text`` is all that is shown; ``lengths`` and ``counts`` are, per piece of it, its length in
    UTF-16 units and its number of tokens, which is above 1 for a character of several tokens.
    """
    pieces = list(text_pieces(path.ids, bytes_of))
    return {
        "text": "".join(text for text, _ in pieces),
        "lengths": [_units(text) for text, _ in pieces],
        "counts": [count for _, count in pieces],
        "ids": list(path.ids),
        "first": path.first,
        "states": path.states(),
        "measures": path.measures(),
        "spelled": bytes_of is not None,
    }


def text_pieces(ids: Sequence[int], bytes_of: BytesOf | None) -> Iterable[tuple[str, int]]:
    """Yield the text of tokens with their number; one piece ends where a character ends."""
    if bytes_of is None:
        yield from ((f"{token} ", 1) for token in ids)
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    held, text = 0, ""
    for token in ids:
        known = bytes_of(token)
        content = f"[{token}]".encode() if known is None else known
        if held and not (content and content[0] in _CONTINUES):
            yield _shown(text + decoder.decode(b"", final=True)), held
            decoder.reset()
            held, text = 0, ""
        held, text = held + 1, text + decoder.decode(content)
        if not decoder.getstate()[0]:
            yield _shown(text), held
            held, text = 0, ""
    if held:
        yield _shown(text + decoder.decode(b"", final=True)), held


def _shown(text: str) -> str:
    return visible(text).replace("\n", "\u21b5\n") or _EMPTY


def _units(text: str) -> int:
    return len(text) + sum(ord(letter) >= _FIRST_ASTRAL for letter in text)
