"""Conversion of rows to the ``TensorDict`` for an update of verl's actor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData, NonTensorStack
from torch import Tensor

from agl_core.errors import TrainingError
from agl_verl._loss import AggMode
from agl_verl.convert._images import Shown, VisionInputs
from agl_verl.convert._rows import TrainingRow


def tensors_of(
    rows: Sequence[TrainingRow],
    *,
    multiple: int,
    pad_id: int,
    agg_mode: AggMode,
    ranks: int = 1,
    shown: Shown | None = None,
) -> TensorDict:
    """Return one minibatch in verl's no-padding layout: jagged tensors, one row per sequence.

    verl gets weights per token as ``rollout_is_weights`` and multiplies its loss by them before
    averaging. This function scales them so that verl's average, with W the sum of the rows'
    weights, is::

        loss = sum(w * l) / W

    With N trained tokens and B rows in the minibatch, and T trained tokens in the row, the factor
    is

    ===================  ===================
    agg_mode             factor
    ===================  ===================
    token-mean           ``N / W``
    seq-mean-token-sum   ``B / W``
    seq-mean-token-mean  ``T * B / W``
    ===================  ===================

    Padding rows without trained tokens make the number of rows a multiple of `multiple` and
    `ranks`. They count in B, but not in N or W; ``padding_rows`` is their number.

    ``position_ids`` are depths (L,). For a vision model they are (4, L): depths, and positions in
    time, height and width; ``multi_modal_inputs`` then contains each row's images.

    Args:
        rows: The rows of one optimizer step, for all ranks.
        multiple: The number of rows is padded to a multiple of this: the number of data-parallel
            ranks, times the rows of a micro-batch if that number is fixed.
        pad_id: Token of the padding rows; any id of the model's vocabulary.
        agg_mode: The ``loss_agg_mode`` of the loss.
        ranks: Number of data-parallel ranks; each gets about the same number of tokens.
        shown: The batch's images, for a vision model; rows without an image get a blank one.

    Raises:
        TrainingError: there are no rows, all weights are 0, or an image differs from the recorded
            prompt.
    """
    weight = float(sum(row.weights.sum(dtype=np.float64) for row in rows))
    if weight <= 0:
        raise TrainingError(
            f"A minibatch of {len(rows)} rows has no weight: there is nothing to divide its loss by"
        )
    padding = -len(rows) % math.lcm(multiple, ranks)
    filled = _dealt([*rows, *[_padding_row(pad_id)] * padding], ranks)
    settings = _settings(len(filled), padding=padding, pad_id=pad_id)
    if shown is not None:
        filled = [shown.completed(row) for row in filled]
    return TensorDict(
        {
            **(_sequences(filled) if shown is None else _seen([*map(shown.read, filled)])),
            **_streams(filled, _factors(filled, weight=weight, agg_mode=agg_mode)),
            "temperature": _temperature(filled),
            **{key: NonTensorData(value) for key, value in settings.items()},
        },
        batch_size=[len(filled)],
    )


def _settings(size: int, *, padding: int, pad_id: int) -> dict[str, object]:
    """Return verl's settings for one optimizer step on all rows, in the given order."""
    return {
        "global_batch_size": size,
        "mini_batch_size": size,
        "epochs": 1,
        "seed": 0,
        "dataloader_kwargs": {"shuffle": False},
        "calculate_entropy": False,
        "compute_loss": True,
        "pad_token_id": pad_id,
        "padding_rows": padding,
    }


def _padding_row(pad_id: int) -> TrainingRow:
    nothing = np.zeros(1, np.float32)
    token = np.array([pad_id], np.int64)
    return TrainingRow(token, token, np.zeros(1, np.bool_), nothing, nothing, nothing, 1.0, ())


def _dealt(rows: Sequence[TrainingRow], ranks: int) -> list[TrainingRow]:
    """Return the rows ordered so that each rank gets one of `ranks` equal slices.

    The longest rows are assigned first, in alternating order of ranks, to balance the tokens.
    """
    if ranks == 1:
        return list(rows)
    hands: list[list[TrainingRow]] = [[] for _ in range(ranks)]
    ordered = sorted(rows, key=len, reverse=True)
    for index, row in enumerate(ordered):
        turn, place = divmod(index, ranks)
        hands[place if turn % 2 == 0 else ranks - 1 - place].append(row)
    return [row for hand in hands for row in hand]


def _factors(rows: Sequence[TrainingRow], *, weight: float, agg_mode: AggMode) -> list[float]:
    trained = [int(row.mask.sum()) for row in rows]
    if agg_mode == "token-mean":
        return [sum(trained) / weight] * len(rows)
    if agg_mode == "seq-mean-token-sum":
        return [len(rows) / weight] * len(rows)
    return [tokens * len(rows) / weight for tokens in trained]


def _sequences(rows: Sequence[TrainingRow]) -> dict[str, Tensor]:
    return {
        "input_ids": _jagged([np.concatenate([row.prompt, row.response]) for row in rows]),
        "position_ids": _jagged([np.arange(len(row), dtype=np.int64) for row in rows]),
        "prompts": _jagged([row.prompt for row in rows]),
        "responses": _jagged([row.response for row in rows]),
    }


def _seen(rows: Sequence[VisionInputs]) -> dict[str, Any]:
    return {
        "input_ids": _jagged([np.concatenate([row.prompt, row.response]) for row in rows]),
        "position_ids": _side_by_side([row.positions for row in rows]),
        "prompts": _jagged([row.prompt for row in rows]),
        "responses": _jagged([row.response for row in rows]),
        "multi_modal_inputs": NonTensorStack.from_list(
            [NonTensorData(dict(row.inputs)) for row in rows]
        ),
    }


def _streams(rows: Sequence[TrainingRow], factors: Sequence[float]) -> dict[str, Tensor]:
    def jagged(stream: Callable[[TrainingRow], NDArray[np.generic]]) -> Tensor:
        return _jagged([stream(row) for row in rows])

    scaled = [
        (row.weights * np.float64(factor)).astype(np.float32)
        for row, factor in zip(rows, factors, strict=True)
    ]
    return {
        "response_mask": jagged(lambda row: row.mask.astype(np.int64)),
        "loss_mask": jagged(lambda row: row.mask.astype(np.int64)),
        "old_log_probs": jagged(lambda row: row.logprobs),
        "advantages": jagged(lambda row: row.advantages),
        "rollout_is_weights": _jagged(scaled),
    }


def _temperature(rows: Sequence[TrainingRow]) -> Tensor | NonTensorData:
    """Return one number if all trained rows have the same, as verl's fused kernels require."""
    temperatures = {row.temperature for row in rows if row.calls}
    if len(temperatures) == 1:
        return NonTensorData(temperatures.pop())
    return torch.tensor([row.temperature for row in rows], dtype=torch.float32)


def _jagged(arrays: Sequence[NDArray[np.generic]]) -> Tensor:
    lengths = [len(array) for array in arrays]
    return torch.nested.nested_tensor_from_jagged(
        torch.from_numpy(np.concatenate(arrays)),
        torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int64)),
        # Without these bounds, padding would use the total number of tokens as row length.
        min_seqlen=min(lengths),
        max_seqlen=max(lengths),
    )


def _side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    """Return a jagged tensor of tensors (4, L) with different lengths."""
    lengths = [tensor.shape[-1] for tensor in tensors]
    return torch.nested.nested_tensor_from_jagged(
        torch.cat([*tensors], dim=-1),
        torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int64)),
        jagged_dim=2,
        min_seqlen=min(lengths),
        max_seqlen=max(lengths),
    )
