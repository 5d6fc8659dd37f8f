"""Continuous batching for one policy: answers enter and leave the batch between tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agl_core.errors import EngineError
from agl_torch.serving._prefix import Tokens
from agl_torch.serving.decoder import Decoder
from agl_torch.serving.outbox import Outbox
from agl_torch.serving.sampling import draw, sample
from agl_torch.serving.sequence import AnswerRow, Generation, answers


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Limits of one lane's batch."""

    rows: int
    kv_tokens: int
    """Maximum of rows times the longest final length among them."""


class Lane:
    """The running and waiting answers of one policy.

    Row i of the batch is in slot i; when a row ends, the last one moves to its slot. The row's
    first decoding pass reads the prompt's last token, so that all rows start the same way, whether
    the rest of the prompt was computed for this answer, for another answer of the request, or for
    an earlier request. Only one thread may use a lane.
    """

    def __init__(
        self, decoder: Decoder, *, limits: LaneLimits, ends: frozenset[int], version: int
    ) -> None:
        """Create an empty lane.

        Args:
            ends: Ids of the tokens that end an answer.
            version: Version of the weights.
        """
        self._decoder = decoder
        self._limits = limits
        self._ends = ends
        self._waiting: deque[AnswerRow] = deque()
        self._rows: list[AnswerRow] = []
        self.version = version
        """Version of the weights; a request records it when it starts."""
        self.trained_in: int | None = None
        """The training step that produced the weights; None for loaded weights."""
        self.held = False
        """If set, no new request starts; running ones continue."""

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return not self.resting or bool(self._waiting and not self.held)

    @property
    def resting(self) -> bool:
        """Whether no request is running."""
        return not self._rows and not self._next_started

    @property
    def _next_started(self) -> bool:
        """Whether some answers of the first request in the queue have already started."""
        return bool(self._waiting) and self._waiting[0].generation.version is not None

    def add(self, generation: Generation) -> None:
        """Queue a request's answers."""
        self._waiting.extend(answers(generation))

    def renew(self, version: int, *, trained_in: int | None) -> None:
        """Set a new version and drop cached prompts of the old weights.

        Args:
            version: Version of the new weights.
            trained_in: The training step that produced them; None for loaded weights.
        """
        assert self.resting, "requests under way would mix old and new weights"
        self._decoder.forget()
        self.version = version
        self.trained_in = trained_in

    def fail(self, error: EngineError, outbox: Outbox) -> None:
        """End every answer with `error` and clear the batch."""
        for answer in [*self._rows, *self._waiting]:
            if not answer.generation.cancelled:
                answer.generation.cancelled = True
                outbox.put(answer.generation, error)
        self._rows.clear()
        self._waiting.clear()
        self._decoder.forget(slots=True)

    @torch.inference_mode()
    def step(self, outbox: Outbox) -> None:
        """Admit waiting answers and sample one token for every row."""
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
        """Remove rows, given by ascending index."""
        for index in reversed(indices):
            last = self._rows.pop()
            if index < len(self._rows):
                self._decoder.copy(len(self._rows), index, last.cached)
                self._rows[index] = last

    def _admit(self) -> None:
        """Move as many waiting answers into slots as the limits allow, in order of arrival."""
        chosen: list[AnswerRow] = []
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

    def _place(self, chosen: Sequence[AnswerRow]) -> None:
        """Assign slots to answers, computing each distinct prompt once."""
        groups: dict[Tokens, list[AnswerRow]] = {}
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
