"""Rows that show images, as a model that sees takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from agl_core.errors import TrainingError
from agl_verl.convert.forest import Ints
from agl_verl.convert.rows import Row
from agl_verl.vision import BLANK, Vision


@dataclass(frozen=True, slots=True)
class Seen:
    """A row as the model reads it."""

    prompt: Ints
    response: Ints
    positions: Tensor
    """(4, L) place in the text, then in time, height and width."""
    inputs: Mapping[str, Tensor]
    """The images, in the order of the row."""


class Shown:
    """The images of a batch."""

    def __init__(self, vision: Vision, urls: Sequence[str]) -> None:
        """Take `Batch.images` over."""
        self._vision = vision
        self._urls = (*urls, BLANK)

    def completed(self, row: Row) -> Row:
        """The row, with a blank image at its end if it has none.

        verl's Qwen2-VL cannot read a micro-batch without an image, and a row may be alone in one.
        Nothing that is trained comes after the blank one, so nothing that is trained sees it.
        """
        if (row.prompt < 0).any() or (row.response < 0).any():
            return row
        (length,) = self._vision.lengths([BLANK])
        blank = np.full(length, -len(self._urls), np.int64)
        nothing = np.zeros(length, np.float32)
        return replace(
            row,
            response=np.append(row.response, blank),
            mask=np.append(row.mask, nothing.astype(np.bool_)),
            advantages=np.append(row.advantages, nothing),
            weights=np.append(row.weights, nothing),
            logprobs=np.append(row.logprobs, nothing),
        )

    def read(self, row: Row) -> Seen:
        """Images and positions of a completed row.

        Raises:
            TrainingError: an image makes another number of tokens here than where it was shown.
        """
        ids = np.concatenate([row.prompt, row.response])
        runs = [(-1 - int(id_), len([*run])) for id_, run in groupby(ids) if id_ < 0]
        urls = [self._urls[number] for number, _ in runs]
        found, recorded = self._vision.lengths(urls), [length for _, length in runs]
        if found != recorded:
            raise TrainingError(
                f"The images of a row make {found} tokens by the model's image processor, but "
                f"{recorded} in its recorded prompts: serve the policy with the image processor "
                f"that its directory holds, and without options of its own (mm_processor_kwargs)"
            )
        inputs = self._vision.inputs(urls)
        tokens = torch.from_numpy(self._marked(ids))
        positions = torch.cat(
            [torch.arange(len(ids))[None], self._vision.positions(tokens, inputs)]
        )
        return Seen(self._marked(row.prompt), self._marked(row.response), positions, inputs)

    def _marked(self, ids: Ints) -> Ints:
        return np.where(ids < 0, self._vision.token, ids)
