"""Generation with a vision model, one request at a time."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from agl_torch.serving.outbox import Outbox
from agl_torch.serving.sampling import draw, sample
from agl_torch.serving.sequence import Generation, answers
from torch import Tensor
from transformers import DynamicCache

from agl_core.errors import EngineError
from agl_verl.vision import Vision


class VisionLane:
    """The running request of one policy, and the waiting ones."""

    def __init__(self, model: Any, vision: Vision, *, ends: frozenset[int], version: int) -> None:
        """Create an empty lane.

        Args:
            ends: Ids of the tokens that end an answer.
            version: Version of the weights.
        """
        self._model = model
        self._vision = vision
        self._ends = ends
        self.version = version
        self._waiting: deque[Generation] = deque()
        self._current: _Reading | None = None
        self.trained_in: int | None = None
        """See `agl_torch.serving.lane.Lane`; always None, as a server does not know the step."""
        self.held = False
        """If set, no new request starts; the running one continues."""

    @property
    def busy(self) -> bool:
        return not self.resting or bool(self._waiting and not self.held)

    @property
    def resting(self) -> bool:
        return self._current is None

    def add(self, generation: Generation) -> None:
        self._waiting.append(generation)

    def renew(self, model: Any, version: int) -> None:
        """Use other weights."""
        assert self.resting, "the request under way would mix old and new weights"
        self._model, self.version = model, version

    def fail(self, error: EngineError, outbox: Outbox) -> None:
        """End every answer with `error` and clear the lane."""
        current = [] if self._current is None else [self._current.generation]
        for generation in [*current, *self._waiting]:
            if not generation.cancelled:
                generation.cancelled = True
                outbox.put(generation, error)
        self._current = None
        self._waiting.clear()

    @torch.inference_mode()
    def step(self, outbox: Outbox) -> None:
        """Sample one token for every answer of the current request."""
        if self._current is not None and self._current.generation.cancelled:
            self._current = None
        if self._current is None:
            self._current = self._next()
        if self._current is not None and self._current.step(self._ends, outbox):
            self._current = None

    def _next(self) -> _Reading | None:
        while self._waiting and not self.held:
            generation = self._waiting.popleft()
            if not generation.cancelled:
                generation.version = self.version
                return _Reading(self._model, self._vision, generation)
        return None


class _Reading:
    """The model's cache and answers of one request, one answer per row."""

    def __init__(self, model: Any, vision: Vision, generation: Generation) -> None:
        """Compute the prompt."""
        self.generation = generation
        self._model = model
        self._mark = vision.token
        self._rows = answers(generation)
        ids = torch.tensor(generation.prompt)
        images = vision.inputs(generation.images) if generation.images else {}
        places = vision.positions(ids, images)
        positions = torch.cat([torch.arange(len(ids))[None], places])[:, None]  # (4, 1, L)
        # An answer's positions continue after the prompt's largest, plus one in each dimension.
        self._position = torch.cat([positions[:1, :, -1:], places.amax().expand(3, 1, 1)]) + 1
        self._cache = DynamicCache(config=model.config.get_text_config())
        logits = self._forward(ids[None], positions, **images)
        self._cache.batch_repeat_interleave(generation.n)
        self._logits = logits.expand(generation.n, -1)

    def step(self, ends: frozenset[int], outbox: Outbox) -> bool:
        """Sample a token for each unfinished answer; return whether all are finished."""
        if self._rows[0].tokens:
            self._read_last()
        sampled = sample(
            self._logits,
            [self.generation.sampling] * len(self._rows),
            [draw(row.stream) for row in self._rows],
        )
        going: list[int] = []
        for index, row in enumerate(self._rows):
            row.take(sampled.tokens[index], sampled.logprobs[index], sampled.tops[index])
            finish = row.finish(ends)
            if finish is None:
                going.append(index)
            if finish is not None or self.generation.stream:
                outbox.put(self.generation, row.piece(finish))
        if len(going) < len(self._rows):
            self._rows = [self._rows[index] for index in going]
            self._cache.batch_select_indices(torch.tensor(going, dtype=torch.long))
        return not going

    def _read_last(self) -> None:
        """Compute the newest token of each answer; all answers have the same length."""
        ids = torch.tensor([[row.last] for row in self._rows])
        self._logits = self._forward(ids, self._position.expand(-1, len(ids), -1))
        self._position = self._position + 1

    def _forward(self, ids: Tensor, positions: Tensor, **images: Tensor) -> Tensor:
        """Return the logits (R, V) of the token after `ids` (R, T)."""
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
            **images,
        )
        logits: Tensor = output.logits[:, -1]
        # The model must not sample an image placeholder: it would have no image.
        logits[:, self._mark] = -torch.inf
        return logits
