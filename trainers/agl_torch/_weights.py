"""The weights of a policy: a full model, or a low-rank adapter on a shared model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from transformers import PreTrainedModel

from agl_torch._forward import CausalModel
from agl_torch.adapters import load_weights
from agl_torch.models import without_progress_bars


class Weights(Protocol):
    """One policy's weights, for serving and, unless frozen, for training."""

    serving: CausalModel
    training: CausalModel
    """The float32 weights that the optimizer changes; may be the same object as `serving`."""

    @property
    def model(self) -> PreTrainedModel:
        """The wrapped transformers model."""
        ...

    def parameters(self) -> list[tuple[str, Parameter]]:
        """Return the trained parameters in a fixed order; empty for a frozen policy."""
        ...

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight with its name in the original model."""
        ...

    def publish(self) -> None:
        """Copy the trained weights to the served ones."""
        ...

    def save(self, directory: Path, *, whole: bool = True) -> None:
        """Write a directory that transformers and vLLM can load.

        Args:
            whole: False writes only the trained weights: for LoRA, the adapter without its model.
        """
        ...

    def load(self, directory: Path) -> None:
        """Load the weights that `save` wrote.

        Raises:
            ConfigError: the directory does not have weights of this kind.
        """
        ...


class FullWeights:
    """A full model that belongs to one policy."""

    def __init__(self, trained: PreTrainedModel, served: PreTrainedModel | None = None) -> None:
        """Train `trained`, and serve `served`, a copy in another dtype, or `trained` itself."""
        self._trained = trained.requires_grad_(requires_grad=True)
        self._served = trained if served is None else served
        self.training = CausalModel(trained)
        self.serving = self.training if served is None else CausalModel(served)

    @property
    def model(self) -> PreTrainedModel:
        return self._trained

    def parameters(self) -> list[tuple[str, Parameter]]:
        return list(self._trained.named_parameters())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from plain_tensors(self._trained)

    @torch.no_grad()
    def publish(self) -> None:
        if self._trained is self._served:
            return
        pairs = zip(self._served.parameters(), self._trained.parameters(), strict=True)
        for served, trained in pairs:
            served.copy_(trained)

    def save(self, directory: Path, *, whole: bool = True) -> None:
        del whole  # training changes every weight
        with without_progress_bars():
            self._trained.save_pretrained(directory)

    def load(self, directory: Path) -> None:
        # On the CPU: the device may not have memory for a second copy.
        read = load_weights(str(directory), dtype=self._trained.dtype, device=torch.device("cpu"))
        self._trained.load_state_dict(read.state_dict())
        self.publish()


def plain_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the model's weights without adapters, under their names in the original model."""
    for name, tensor in module.state_dict().items():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), tensor


def fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the sha256 over names, dtypes, shapes and bytes, in ascending order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        flat = tensor.detach().contiguous().cpu().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_model(like: PreTrainedModel, tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Save `tensors` as a model with the class and configuration of `like`."""
    with torch.device("meta"):
        model = type(like)(like.config)
    model.load_state_dict(dict(tensors), assign=True)
    model.tie_weights()
    model.generation_config = like.generation_config
    with without_progress_bars():
        model.save_pretrained(directory)
