"""Continuous batching for one set of weights: answers join and leave between tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agl_core.errors import EngineError
from agl_torch.serving.decoder import Decoder
from agl_torch.serving.outbox import Outbox
from agl_torch.serving.prefix import Tokens
from agl_torch.serving.sampling import draw, sample
from agl_torch.serving.sequence import Answer, Generation, answers


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How much one lane may hold at a time."""

    rows: int
    kv_tokens: int
    """Rows times the longest any of them can become."""


class Lane:
    """The answers that one set of weights is generating, and those that wait.

    Row i of the batch lives in slot i; when a row ends, the last one takes its slot. A prompt's
    last token is read by the row's first decoding pass, so that all rows join alike, whether their
    prompt was read for them, for another answer, or for an earlier request. Used by one thread.
    """

    def __init__(
        self, decoder: Decoder, *, limits: LaneLimits, ends: frozenset[int], version: int
    ) -> None:
        """Create an empty lane.

        Args:
            ends: Tokens that end an answer.
            version: Of the weights.
        """
        self._decoder = decoder
        self._limits = limits
        self._ends = ends
        self._waiting: deque[Answer] = deque()
        self._rows: list[Answer] = []
        self.version = version
        """Version of the weights; requests are stamped with it when they start."""
        self.trained_in: int | None = None
        """The training step that made the weights; None for those that were loaded."""
        self.held = False
        """Start no request; those under way continue."""

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return not self.resting or bool(self._waiting and not self.held)

    @property
    def resting(self) -> bool:
        """Whether no request is under way."""
        return not self._rows and not self._next_started

    @property
    def _next_started(self) -> bool:
        """Whether some answers of the request at the head of the queue have been sampled from."""
        return bool(self._waiting) and self._waiting[0].generation.version is not None

    def add(self, generation: Generation) -> None:
        """Queue a request's answers."""
        self._waiting.extend(answers(generation))

    def renew(self, version: int, *, trained_in: int | None) -> None:
        """Forget what the old weights have computed.

        Args:
            version: Of the new weights.
            trained_in: The training step that made them; None where they were loaded.
        """
        assert self.resting, "requests under way would mix old and new weights"
        self._decoder.forget()
        self.version = version
        self.trained_in = trained_in

    def fail(self, error: EngineError, outbox: Outbox) -> None:
        """End every answer with `error` and start afresh."""
        for answer in [*self._rows, *self._waiting]:
            if not answer.generation.cancelled:
                answer.generation.cancelled = True
                outbox.put(answer.generation, error)
        self._rows.clear()
        self._waiting.clear()
        self._decoder.forget(slots=True)

    @torch.inference_mode()
    def step(self, outbox: Outbox) -> None:
        """Let waiting answers in and sample one token for every row."""
        self._drop_cancelled()
        self._admit()
        if not self._rows:
            return
        lengths = [row.cached for row in self._rows]
        self._decoder.reserve(len(lengths), max(lengths) + 1, keep=len(lengths))
        logits = self._decoder.next_logits([row.last for row in self._rows], lengths)
        sampled = sample(
            logits,
            [row.generation.sampling for row in self._rows],
            [draw(row.stream) for row in self._rows],
        )
        ended: list[int] = []
        for index, row in enumerate(self._rows):
            row.cached += 1
            row.take(sampled.tokens[index], sampled.logprobs[index], sampled.tops[index])
            finish = row.finish(self._ends)
            if finish is not None:
                ended.append(index)
            if finish is not None or row.generation.stream:
                outbox.put(row.generation, row.piece(finish))
        self._remove(ended)

    def _drop_cancelled(self) -> None:
        self._remove([i for i, row in enumerate(self._rows) if row.generation.cancelled])
        if any(answer.generation.cancelled for answer in self._waiting):
            kept = [answer for answer in self._waiting if not answer.generation.cancelled]
            self._waiting = deque(kept)

    def _remove(self, indices: Sequence[int]) -> None:
        """Take rows out, given by ascending index."""
        for index in reversed(indices):
            last = self._rows.pop()
            if index < len(self._rows):
                self._decoder.copy(len(self._rows), index, last.cached)
                self._rows[index] = last

    def _admit(self) -> None:
        """Move as many waiting answers into slots as rows and memory allow, first come first."""
        chosen: list[Answer] = []
        length = max((row.final_length for row in self._rows), default=0)
        while self._waiting and len(self._rows) + len(chosen) < self._limits.rows:
            if self.held and not self._next_started:
                break
            needed = max(length, self._waiting[0].final_length)
            rows = len(self._rows) + len(chosen) + 1
            if rows > 1 and rows * needed > self._limits.kv_tokens:
                break
            length = needed
            chosen.append(self._waiting.popleft())
            chosen[-1].generation.version = self.version
        if chosen:
            longest = max(len(answer.prompt) for answer in chosen)
            cached = max((row.cached for row in self._rows), default=0)
            slots = len(self._rows) + len(chosen)
            self._decoder.reserve(slots, max(longest, cached + 1), keep=len(self._rows))
            self._place(chosen)

    def _place(self, chosen: Sequence[Answer]) -> None:
        """Give answers their slots, reading each different prompt once."""
        groups: dict[Tokens, list[Answer]] = {}
        for answer in chosen:
            groups.setdefault(answer.prompt[:-1], []).append(answer)
        first = len(self._rows)
        slots = self._decoder.read(first, list(groups))
        leaders = dict(zip(slots, groups.values(), strict=True))
        self._rows.extend(leaders[slot][0] for slot in sorted(leaders))
        for slot, group in leaders.items():
            length = len(group[0].prompt) - 1
            if len(group) > 1:
                begin = len(self._rows)
                self._decoder.copy(slot, slice(begin, begin + len(group) - 1), length)
                self._rows.extend(group[1:])
            for answer in group:
                answer.cached = length
