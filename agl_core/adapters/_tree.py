"""Prefix trees over exact token ids: an agent's calls as trajectories, and a batch as a forest."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agl_core.adapters._images import ImageNumbers
from agl_core.adapters._join import JoinedCall
from agl_core.errors import TrainingError
from agl_core.interfaces import CreditedCall
from agl_core.types import Batch, Choice, Ints, Rollout, Trajectory, Triplet


class RadixNode:
    """A sequence of tokens without a branch."""

    __slots__ = ("children", "depth", "parent", "start", "tokens")

    def __init__(self, tokens: Ints, *, parent: RadixNode | None) -> None:
        self.tokens = tokens
        self.parent = parent
        self.depth: int = len(tokens) + (parent.depth if parent else 0)
        """Number of tokens from the root to the end of this node."""
        self.children: dict[int, RadixNode] = {}
        """Children by first token, in order of insertion."""
        self.start = -1
        """Index of the first token in the batch; -1 until the tree is laid out."""


class RadixTree:
    """Token paths with shared prefixes.

    A node stays the end of the path for which `insert` returned it: when a later path branches off
    inside the node, the shared tokens move to a new parent node.
    """

    def __init__(self) -> None:
        self.root = RadixNode(array("i"), parent=None)

    def insert(self, ids: Ints, *, below: RadixNode | None = None) -> RadixNode:
        """Follow the path `ids` from the end of `below`, adding missing nodes; return its end node.

        The tree may keep a reference to `ids`.
        """
        node = below or self.root
        at = 0
        while at < len(ids):
            child = node.children.get(ids[at])
            if child is None:
                grown = RadixNode(ids[at:] if at else ids, parent=node)
                node.children[ids[at]] = grown
                return grown
            shared = _shared_length(child.tokens, ids, at=at)
            node = child if shared == len(child.tokens) else _split(child, at=shared)
            at += shared
        return node

    def walk(self) -> Iterator[RadixNode]:
        """Yield every node except the root, depth first, children in order of insertion."""
        stack = list(reversed(self.root.children.values()))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))


def ancestors(node: RadixNode) -> Iterator[RadixNode]:
    """Yield the node, then its ancestors up to the root."""
    current: RadixNode | None = node
    while current is not None:
        yield current
        current = current.parent


def _split(node: RadixNode, *, at: int) -> RadixNode:
    """Move the first `at` tokens of a node into a new parent node and return the parent."""
    parent = node.parent
    assert parent is not None  # the root holds no tokens, so it is never split
    upper = RadixNode(node.tokens[:at], parent=parent)
    parent.children[upper.tokens[0]] = upper
    node.tokens = node.tokens[at:]
    node.parent = upper
    upper.children[node.tokens[0]] = node
    return upper


def _shared_length(left: Ints, right: Ints, *, at: int) -> int:
    """Return the length of the common prefix of `left` and ``right[at:]``.

    Bisection over array slices takes linear time and compares tokens in C.
    """
    low, high = 0, min(len(left), len(right) - at)
    if left[:high] == right[at : at + high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[at + low : at + middle]:
            low = middle
        else:
            high = middle
    return low


@dataclass(slots=True, eq=False)
class Sample:
    """One choice of one call as a part of a trajectory."""

    joined: JoinedCall
    choice: Choice
    before: Sample | None
    """The sample that this one continues: this prompt begins with its prompt and response."""
    after: list[Sample] = field(default_factory=list["Sample"])
    """Samples that continue this one."""

    @property
    def call_id(self) -> str:
        return self.joined.call.id

    @property
    def continued(self) -> bool:
        """Whether a later call continues this choice, or the call has only one choice.

        An ``n > 1`` call that no later call continues has no continued choice. Its record does not
        state which choice the agent used, so only rewards that name a choice can train it.
        """
        return bool(self.after) or len(self.joined.call.choices) == 1


def link(calls: Iterable[JoinedCall]) -> list[Sample]:
    """Connect one agent's calls, given in causal order, by exact token ids.

    A call continues the longest earlier sample whose prompt and response are a prefix of the call's
    prompt, compared by token ids and images. A call whose history was edited, trimmed or rendered
    differently continues no sample and starts a new trajectory. If several samples are equal
    (repeated prompts, parallel runs), a sample of the same agent run is preferred, and among those
    one that no call continues yet.
    """
    tree, numbers = RadixTree(), ImageNumbers()
    ends: dict[RadixNode, list[Sample]] = defaultdict(list)
    samples: list[Sample] = []
    for joined in calls:
        prompt = numbers.ids(joined.call.prompt_token_ids, joined.images)
        prompt_end = tree.insert(prompt)
        before = _predecessor(joined, prompt_end, ends)
        fresh: list[tuple[RadixNode, Sample]] = []
        for choice in sorted(joined.call.choices, key=lambda choice: choice.index):
            end = tree.insert(choice.token_ids, below=prompt_end)
            fresh.append((end, Sample(joined=joined, choice=choice, before=before)))
        for end, sample in fresh:
            ends[end].append(sample)
            samples.append(sample)
            if before is not None:
                before.after.append(sample)
    return samples


def _predecessor(
    joined: JoinedCall, prompt_end: RadixNode, ends: Mapping[RadixNode, Sequence[Sample]]
) -> Sample | None:
    for node in ancestors(prompt_end):
        if node in ends:
            return min(
                ends[node],
                key=lambda sample: (
                    sample.joined.agent_run_id != joined.agent_run_id,
                    bool(sample.after),
                ),
            )
    return None


def trajectories(
    samples: Sequence[Sample],
    *,
    rollout: Rollout,
    rewards: Mapping[tuple[str, int], float],
) -> list[Trajectory]:
    """Split linked samples into root-to-leaf trajectories, in the order of their first call.

    Each sample belongs to exactly one trajectory. If several samples continue one sample, the
    continued choice of the first call extends its trajectory, and the others start new ones with
    the shared part as context.

    Args:
        rewards: Rewards for exactly one choice, by call id and choice index.
    """
    built: list[Trajectory] = []
    kept = {id(_continuation(sample)) for sample in samples if sample.after}
    for sample in samples:
        if id(sample) in kept:
            continue
        path = [sample]
        while path[-1].after:
            path.append(_continuation(path[-1]))
        built.append(_trajectory(path, rollout=rollout, rewards=rewards))
    return built


def _continuation(sample: Sample) -> Sample:
    first = [after for after in sample.after if after.call_id == sample.after[0].call_id]
    return next((after for after in first if after.continued), first[0])


def _trajectory(
    path: Sequence[Sample], *, rollout: Rollout, rewards: Mapping[tuple[str, int], float]
) -> Trajectory:
    leaf = path[-1]
    token_ids = leaf.joined.call.prompt_token_ids + leaf.choice.token_ids
    call_index = array("i", [-1]) * len(token_ids)
    logprobs = array("d", [0.0]) * len(token_ids)
    for index, sample in enumerate(path):
        start = len(sample.joined.call.prompt_token_ids)
        end = start + len(sample.choice.token_ids)
        call_index[start:end] = array("i", [index]) * (end - start)
        logprobs[start:end] = sample.choice.logprobs
    return Trajectory(
        rollout_id=rollout.id,
        attempt_id=leaf.joined.call.attempt_id,
        group_id=rollout.group_id,
        task_id=rollout.task.id,
        agent=leaf.joined.agent,
        policy=leaf.joined.call.policy,
        token_ids=token_ids,
        call_index=call_index,
        logprobs=logprobs,
        calls=[_triplet(sample, rewards=rewards) for sample in path],
    )


def _triplet(sample: Sample, *, rewards: Mapping[tuple[str, int], float]) -> Triplet:
    joined, call, choice = sample.joined, sample.joined.call, sample.choice
    return Triplet(
        call_id=call.id,
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        agent=joined.agent,
        agent_run_id=joined.agent_run_id,
        ordinal=joined.ordinal,
        run_ordinal=joined.run_ordinal,
        choice=choice.index,
        continued=sample.continued,
        prompt_ids=call.prompt_token_ids,
        response_ids=choice.token_ids,
        logprobs=choice.logprobs,
        logprobs_mode=call.logprobs_mode,
        temperature=call.sampling.temperature,
        finish_reason=choice.finish_reason,
        policy=call.policy,
        policy_version=call.policy_version,
        response_text=choice.text,
        images=joined.images,
        alias=joined.alias,
        reward=rewards.get((call.id, choice.index)),
    )


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
