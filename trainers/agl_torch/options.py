"""Options of the ``torch`` engine."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from agl_core.config import EngineOptions
from agl_torch.sources import check_source


class LoraOptions(BaseModel):
    """A low-rank adapter per trainable policy over weights that stay frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    rank: PositiveInt = 16
    """Of both matrices; each layer of ``m`` by ``n`` weights learns ``rank * (m + n)``."""
    alpha: PositiveInt = 32
    """The adapter's product is scaled by ``alpha / rank``."""
    targets: list[str] | Literal["all-linear"] = "all-linear"
    """Endings of the names of the linear layers to adapt; the output head is never among them
    unless named."""


class TorchOptions(EngineOptions):
    """How the engine holds, serves and trains its models."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``auto``: CUDA where there is a device."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of serving and training; ``auto``: bfloat16 on CUDA, float32 on a CPU. Weights that
    are trained stay float32 in any case."""
    lora: LoraOptions | None = None
    """None trains all weights of a trainable policy."""
    threads: PositiveInt | None = None
    """Threads of one CPU operation. None: one less than there are cores, so that the event loop and
    the agents have one."""
    deterministic: bool = False
    """Make an answer's bits independent of what else is being generated, for about half the speed
    and on one CPU thread. Training is bitwise repeatable on a CPU in any case."""
    max_batch_size: PositiveInt = 64
    """Answers that are generated at the same time, per policy."""
    max_new_tokens: PositiveInt = 512
    """Limit of an answer whose request names none."""
    max_model_len: PositiveInt | None = None
    """Longest prompt plus answer in tokens; the model's own limit when None."""
    kv_tokens: PositiveInt = 131_072
    """Bound on keys and values per policy, in tokens: answers under way times the longest that any
    of them may become. Others wait. With `deterministic` there is room for 32 more answers, and
    lengths are rounded up to the next power of two."""
    prefix_tokens: int = Field(default=65_536, ge=0)
    """Room per policy for keys and values of earlier prompts, which prompts with the same beginning
    reuse; 0 keeps none."""
    pack_tokens: PositiveInt = 4096
    """Tokens, padding included, of one forward and backward pass of training. One path of calls is
    never cut: a longer one makes a larger pass."""
    gradient_checkpointing: Literal["auto", "always", "never"] = "auto"
    """Whether training keeps the input of each layer alone and computes the rest again for the
    gradient, at about a third more time. ``auto``: for passes that would otherwise take more than
    half of the memory that is free."""

    ratio_share: float = Field(default=0.1, ge=0, le=1)
    """Share of a step's groups, those with the greatest advantages first and at least one, whose
    tokens are read once more after the update, so that the dashboard shows how it changed their
    probabilities; 0: none. Needs ``train.keep_tokens``."""

    def check_model(self, model: str) -> None:
        """Check the model's path without importing PyTorch.

        Raises:
            ConfigError: see `check_source`.
        """
        check_source(model)
