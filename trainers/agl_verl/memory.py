"""Estimate of the memory that a run needs on one GPU; imports neither torch nor verl.

Symbols: ``P`` parameters, ``A`` parameters of an adapter, ``t`` trained parameters (``P`` or
``A``), ``N`` GPUs that share them, ``T`` tokens of a micro-batch, ``L`` layers, ``H`` hidden size,
``I`` inner size, ``V`` vocabulary size, ``u`` fraction of a GPU that a replica uses, ``f`` frozen
replicas per GPU, ``M`` memory of a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from agl_core.errors import ConfigError

GB: Final = 10**9
_PROCESS: Final = 2 * GB
"""Memory of CUDA, NCCL and CUDA graphs for each process on the GPU."""
_KV_BYTES: Final = 2
_REPLICA_OVERHEAD: Final = 2 * GB
"""Part of a replica's memory that vLLM needs for activations and graphs."""
MOST_OF_A_GPU: Final = 0.9
"""Maximum fraction of a GPU for all its replicas; vLLM's default for one replica."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a causal language model."""

    layers: int
    hidden: int
    inner: int
    vocabulary: int
    heads: int
    kv_heads: int
    width: int
    """Size of one head."""
    tied: bool = False
    """Whether output head and embedding share weights."""
    experts: int = 1

    @classmethod
    def of(cls, config: Any) -> Shape:
        """Return the sizes from a transformers configuration (of a vision model: its text part)."""
        text = getattr(config, "text_config", None) or config
        heads, hidden = int(text.num_attention_heads), int(text.hidden_size)
        experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None)
        inner = getattr(text, "moe_intermediate_size", None) if experts else None
        inner = inner or getattr(text, "intermediate_size", None) or 4 * hidden
        return cls(
            layers=int(text.num_hidden_layers),
            hidden=hidden,
            inner=int(inner),
            vocabulary=int(text.vocab_size),
            heads=heads,
            kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
            width=int(getattr(text, "head_dim", None) or hidden // heads),
            tied=bool(getattr(config, "tie_word_embeddings", False)),
            experts=int(experts or 1),
        )

    @property
    def layer(self) -> int:
        """Number of parameters of one layer."""
        attention = 2 * self.hidden * self.width * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.inner * self.experts

    @property
    def embeddings(self) -> int:
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        return self.layers * self.layer + self.embeddings

    def adapter(self, rank: int) -> int:
        """Return the number of parameters of an adapter on all linear layers."""
        heads, keys = self.heads * self.width, self.kv_heads * self.width
        sides = 2 * (self.hidden + heads) + 2 * (self.hidden + keys)
        return self.layers * rank * (sides + 3 * (self.hidden + self.inner))

    @property
    def token(self) -> int:
        """Bytes of the keys and values of one token."""
        return 2 * _KV_BYTES * self.layers * self.kv_heads * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How a run uses its GPUs."""

    gpus: int = 1
    micro_batch: int
    """Tokens of a micro-batch: ``actor.ppo_max_token_len_per_gpu``."""
    rank: int = 0
    """Rank of the adapter; 0 trains all weights."""
    share: float
    """Fraction of a GPU for one replica: ``rollout.gpu_memory_utilization``."""
    replica: int = 1
    """Number of GPUs of one replica."""
    frozen: int = 0
    """Number of frozen replicas on the fullest GPU."""
    apart: bool = False
    """Whether the trained policy's replicas have their own GPUs."""
    offloaded: bool = False
    """Whether weights and optimizer state are offloaded to host memory."""


@dataclass(frozen=True, slots=True)
class MemoryTerm:
    """One term of the estimate."""

    what: str
    formula: str
    size: int
    serving: bool
    training: bool


def parts_of(shape: Shape, use: Use, memory: int) -> list[MemoryTerm]:
    """Return the terms of the estimate for one GPU with `memory` bytes."""
    count = shape.parameters
    trained = shape.adapter(use.rank) if use.rank else count
    held = 0 if use.offloaded else 1
    tokens, head = use.micro_batch, 2 * shape.embeddings
    share = int(use.share * memory)
    layer = 2 * tokens * (10 * shape.hidden + 3 * shape.inner)
    weights = count + (trained if use.rank else 0)
    return [
        MemoryTerm("weights in float32", "4 (P + A) / N" if use.rank else "4 P / N",
             held * 4 * weights // use.gpus, True, True),
        MemoryTerm("Adam's moments", "8 t / N", held * 8 * trained // use.gpus, True, True),
        MemoryTerm("gradients", "4 t / N", 4 * trained // use.gpus, False, True),
        MemoryTerm("gathered in bfloat16: two layers and the embeddings", "2 (2 P/L + embeddings)",
             4 * shape.layer + head, False, True),
        MemoryTerm("layers' inputs", "2 T L H", 2 * tokens * shape.layers * shape.hidden, False, True),
        MemoryTerm("one layer again", "2 T (10 H + 3 I)", layer, False, True),
        MemoryTerm("logits and their gradient", "8 T V", 8 * tokens * shape.vocabulary, False, True),
        MemoryTerm("largest weight, gathered for a sync", "4 V H",
             4 * shape.vocabulary * shape.hidden, True, False),
        MemoryTerm("the trained policy's replica", "u M", 0 if use.apart else share, True, False),
        MemoryTerm("frozen replicas", "f u M", use.frozen * share, True, True),
        MemoryTerm("CUDA and NCCL, 2 GB a process", "2e9 (2 + f)",
             _PROCESS * (1 + (not use.apart) + use.frozen), True, True),
    ]  # fmt: skip


def totals(parts: Sequence[MemoryTerm]) -> tuple[int, int]:
    """Return the bytes needed while replicas serve, and while the policy trains."""
    return (
        sum(part.size for part in parts if part.serving),
        sum(part.size for part in parts if part.training),
    )


def cached_tokens(shape: Shape, use: Use, memory: int) -> int:
    """Return the number of tokens that a replica can cache; negative if its weights do not fit."""
    room = use.replica * (int(use.share * memory) - _REPLICA_OVERHEAD) - 2 * shape.parameters
    return room // shape.token


def itemized(parts: Sequence[MemoryTerm], *, serving: bool) -> str:
    """Return one of the two sums with its parts as text."""
    taken = [part for part in parts if part.size and (part.serving if serving else part.training)]
    listed = " + ".join(f"{part.what} {part.size / GB:.1f}" for part in taken)
    return f"{sum(part.size for part in taken) / GB:.1f} GB ({listed})"


def problems(shape: Shape, use: Use, memory: int, *, longest: int) -> list[str]:
    """Return what does not fit into a GPU with `memory` bytes, as messages.

    Args:
        longest: Maximum number of tokens of a prompt with its answer.
    """
    found: list[str] = []
    parts = parts_of(shape, use, memory)
    for name, total, serving in zip(
        ("serving", "training"), totals(parts), (True, False), strict=True
    ):
        if total > memory:
            found.append(
                f"{name} needs {itemized(parts, serving=serving)} of a GPU that has {memory / GB:.1f} GB"
            )
    cached = cached_tokens(shape, use, memory)
    if cached < longest:
        found.append(
            f"a replica at gpu_memory_utilization = {use.share:g} has room for the keys and values "
            f"of {max(0, cached)} tokens, fewer than rollout.max_model_len = {longest}"
        )
    return found


def check_fits(shape: Shape, use: Use, memory: int, *, longest: int) -> None:
    """Check that the run fits into a GPU.

    Raises:
        ConfigError: it does not; the message lists the sums.
    """
    if found := problems(shape, use, memory, longest=longest):
        raise ConfigError(
            f"Configuration: the run does not fit: {'; '.join(found)}. Lower verl.actor_rollout_ref."
            f"actor.ppo_max_token_len_per_gpu or rollout.gpu_memory_utilization, set "
            f"verl.actor_rollout_ref.model.lora_rank, or add GPUs"
        )


def default_share(replicas: int) -> float:
    """Return ``gpu_memory_utilization`` by the number of replicas per GPU: 0.5, 0.3, 0.2, 0.15."""
    return 0.5 if replicas <= 1 else int(60 / replicas) / 100


_QWEN_05: Final = Shape(24, 896, 4864, 151936, 14, 2, 64, tied=True)
_QWEN_15: Final = Shape(28, 1536, 8960, 151936, 12, 2, 128, tied=True)
_QWEN_3: Final = Shape(36, 2048, 11008, 151936, 16, 2, 128, tied=True)
_QWEN_7: Final = Shape(28, 3584, 18944, 152064, 28, 4, 128)
_EXAMPLES: Final = (
    ("Qwen2.5-0.5B", _QWEN_05, 24, Use(micro_batch=4096, share=0.3)),
    ("Qwen2.5-1.5B", _QWEN_15, 80, Use(micro_batch=16384, share=0.3, frozen=1)),
    ("Qwen2.5-1.5B", _QWEN_15, 80, Use(micro_batch=16384, share=0.4, frozen=1)),
    ("Qwen2.5-3B", _QWEN_3, 80, Use(micro_batch=8192, share=0.3)),
    ("Qwen2.5-7B", _QWEN_7, 80, Use(micro_batch=8192, share=0.4)),
    ("Qwen2.5-7B, LoRA 32", _QWEN_7, 80, Use(micro_batch=8192, share=0.4, rank=32)),
    ("Qwen2.5-7B", _QWEN_7, 80, Use(gpus=8, micro_batch=16384, share=0.3, frozen=1)),
)
"""Name, shape, GB of a GPU, and use of the GPU."""


def table() -> str:
    """Return the estimates of `_EXAMPLES` and the formula of each term as a Markdown table."""
    sums = [parts_of(shape, use, size * GB) for _, shape, size, use in _EXAMPLES]
    columns = [
        f"{name}; {use.gpus} x {size} GB, `T` {use.micro_batch}, `u` {use.share:g}, `f` {use.frozen}"
        for name, _, size, use in _EXAMPLES
    ]
    lines = [
        f"| GB of one GPU | formula | when | {' | '.join(columns)} |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for index, part in enumerate(sums[-1]):
        when = ("always" if part.training else "serving") if part.serving else "training"
        formula = part.formula if "4 P / N" not in part.formula else "4 P / N, 4 (P + A) / N"
        cells = " | ".join(f"{parts[index].size / GB:.1f}" for parts in sums)
        lines.append(f"| {part.what} | `{formula}` | {when} | {cells} |")
    for place, name in ((0, "serving"), (1, "training")):
        cells = " | ".join(f"{totals(parts)[place] / GB:.1f}" for parts in sums)
        lines.append(f"| **{name}** | | sum | {cells} |")
    fits = " | ".join(
        "no" if max(totals(parts)) > size * GB else "yes"
        for parts, (_, _, size, _) in zip(sums, _EXAMPLES, strict=True)
    )
    cached = " | ".join(
        f"{max(0, cached_tokens(shape, use, size * GB)):,}" for _, shape, size, use in _EXAMPLES
    )
    keys = "`(u M - 2e9 - 2 P) / (4 L heads width)`"
    return "\n".join(
        [
            *lines,
            f"| **fits** | both sums below `M` | | {fits} |",
            f"| tokens of keys and values per replica | {keys} | serving | {cached} |",
        ]
    )
