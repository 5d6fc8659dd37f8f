"""The batch as a prefix forest: one node per unique token, one loss term per sampled token."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from agl_core.adapters._radix import RadixNode, RadixTree, ancestors
from agl_core.adapters.images import ImageNumbers
from agl_core.errors import TrainingError
from agl_core.interfaces import CreditedCall
from agl_core.types import Batch


def forest(calls: Sequence[CreditedCall], *, policy: str, step: int) -> Batch:
    """Lay sampled choices out as a prefix forest; see `agl_core.types.Batch` for the layout.

    A token with weight 0 has no loss term, and a choice without loss terms has no tokens in the
    batch. Choices are sorted by rollout, attempt, agent, call and choice index, so the result does
    not depend on the order of `calls`. Time and memory are linear in the number of tokens.

    Raises:
        TrainingError: no choice has a loss term, or the lengths of credits and tokens differ.
    """
    trained = sorted((call for call in calls if any(call.credit.weights)), key=_order)
    if not trained:
        raise TrainingError(
            f"There is nothing to train policy {policy!r} on in step {step}: no call has a token "
            f"with a weight above 0"
        )
    tree, numbers = RadixTree(), ImageNumbers()
    ends = [_insert(tree, call, numbers) for call in trained]
    layout = _lay_out(tree)
    terms = _Terms()
    for index, (call, end) in enumerate(zip(trained, ends, strict=True)):
        terms.add(call, index=index, end=end)
    return Batch(
        policy=policy,
        step=step,
        tokens=layout.tokens,
        parents=layout.parents,
        positions=layout.positions,
        nodes=terms.nodes,
        targets=terms.targets,
        advantages=terms.advantages,
        weights=terms.weights,
        logprobs=terms.logprobs,
        temperatures=terms.temperatures,
        calls=terms.calls,
        call_ids=tuple(call.triplet.call_id for call in trained),
        versions=tuple(call.triplet.policy_version for call in trained),
        agents=tuple(call.triplet.alias or call.triplet.agent for call in trained),
        groups=array("i", [call.group for call in trained]),
        images=numbers.urls,
        stats=_stats(trained, unique=len(layout.tokens)),
    )


def _order(call: CreditedCall) -> tuple[str, str, str, int, int]:
    triplet = call.triplet
    return (
        triplet.rollout_id,
        triplet.attempt_id,
        triplet.agent,
        triplet.ordinal,
        triplet.choice,
    )


def _insert(tree: RadixTree, call: CreditedCall, numbers: ImageNumbers) -> RadixNode:
    """Insert a call's tokens except the last, which predicts no token; return the end node."""
    triplet, credit = call.triplet, call.credit
    length = len(triplet.response_ids)
    streams = (triplet.logprobs, credit.advantages, credit.weights)
    if not triplet.prompt_ids or any(len(stream) != length for stream in streams):
        raise TrainingError(
            f"Call {triplet.call_id!r} has {len(triplet.prompt_ids)} prompt ids and {length} "
            f"sampled ids, but {[len(stream) for stream in streams]} log-probabilities, "
            f"advantages and weights: the adapter or the algorithm misaligned them"
        )
    prompt = numbers.ids(triplet.prompt_ids, triplet.images)
    return tree.insert(triplet.response_ids[:-1], below=tree.insert(prompt))


@dataclass(slots=True)
class _Layout:
    tokens: array[int] = field(default_factory=lambda: array("i"))
    parents: array[int] = field(default_factory=lambda: array("i"))
    positions: array[int] = field(default_factory=lambda: array("i"))


def _lay_out(tree: RadixTree) -> _Layout:
    layout = _Layout()
    for node in tree.walk():
        start, length, parent = len(layout.tokens), len(node.tokens), node.parent
        node.start = start
        before = -1
        if parent is not None and parent.parent is not None:
            before = parent.start + len(parent.tokens) - 1
        layout.tokens.extend(node.tokens)
        layout.parents.append(before)
        layout.parents.extend(range(start, start + length - 1))
        layout.positions.extend(range(node.depth - length, node.depth))
    return layout


def _last_indices(node: RadixNode, *, count: int) -> list[int]:
    """Return the indices of the last `count` tokens of the path that ends with `node`."""
    pieces: list[range] = []
    for current in ancestors(node):
        if count <= 0:
            break
        end = current.start + len(current.tokens)
        start = max(current.start, end - count)
        pieces.append(range(start, end))
        count -= end - start
    return [index for piece in reversed(pieces) for index in piece]


@dataclass(slots=True)
class _Terms:
    nodes: array[int] = field(default_factory=lambda: array("i"))
    targets: array[int] = field(default_factory=lambda: array("i"))
    advantages: array[float] = field(default_factory=lambda: array("f"))
    weights: array[float] = field(default_factory=lambda: array("f"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    temperatures: array[float] = field(default_factory=lambda: array("f"))
    calls: array[int] = field(default_factory=lambda: array("i"))

    def add(self, call: CreditedCall, *, index: int, end: RadixNode) -> None:
        """Append one term per sampled token whose weight is not 0."""
        triplet, credit = call.triplet, call.credit
        nodes = _last_indices(end, count=len(triplet.response_ids))
        kept = [at for at, weight in enumerate(credit.weights) if weight]
        self.nodes.extend([nodes[at] for at in kept])
        self.targets.extend([triplet.response_ids[at] for at in kept])
        self.advantages.extend([credit.advantages[at] for at in kept])
        self.weights.extend([credit.weights[at] for at in kept])
        self.logprobs.extend([triplet.logprobs[at] for at in kept])
        self.temperatures.extend([triplet.temperature] * len(kept))
        self.calls.extend([index] * len(kept))


def _stats(trained: Sequence[CreditedCall], *, unique: int) -> dict[str, float]:
    triplets = [call.triplet for call in trained]
    return {
        "groups": float(len({call.group for call in trained})),
        "attempts": float(len({triplet.attempt_id for triplet in triplets})),
        "calls": float(len({triplet.call_id for triplet in triplets})),
        "tokens_sampled": float(sum(len(triplet.response_ids) for triplet in triplets)),
        "tokens_flat": float(
            sum(len(triplet.prompt_ids) + len(triplet.response_ids) - 1 for triplet in triplets)
        ),
        "tokens_unique": float(unique),
    }
