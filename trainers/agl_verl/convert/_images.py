"""Rows with images as inputs of a vision model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from agl_core.errors import TrainingError
from agl_verl.convert._forest import IntArray
from agl_verl.convert._rows import TrainingRow
from agl_verl.vision import BLANK, Vision


@dataclass(frozen=True, slots=True)
class VisionInputs:
    """Inputs of a vision model for one row."""

    prompt: IntArray
    response: IntArray
    positions: Tensor
    """(4, L) positions: in the text, then in time, height and width."""
    inputs: Mapping[str, Tensor]
    """Input tensors of the images, in the order of the row."""


class Shown:
    """The images of a batch."""

    def __init__(self, vision: Vision, urls: Sequence[str]) -> None:
        """Create the converter for `Batch.images`."""
        self._vision = vision
        self._urls = (*urls, BLANK)

    def completed(self, row: TrainingRow) -> TrainingRow:
        """Return the row with a blank image appended if it has no image.

        verl's Qwen2-VL cannot process a micro-batch without an image, and a micro-batch may consist
        of one row. No trained token follows the blank image, so none attends to it.
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

    def read(self, row: TrainingRow) -> VisionInputs:
        """Return the model inputs of a completed row.

        Raises:
            TrainingError: an image's number of tokens differs from that in the recorded prompt.
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
        return VisionInputs(self._marked(row.prompt), self._marked(row.response), positions, inputs)

    def _marked(self, ids: IntArray) -> IntArray:
        return np.where(ids < 0, self._vision.token, ids)
