"""Prefix trees over exact token ids: an agent's calls as paths."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agl_core.adapters._radix import RadixNode, RadixTree, ancestors
from agl_core.adapters.images import ImageNumbers
from agl_core.adapters.join import JoinedCall
from agl_core.types import Choice, Rollout, Trajectory, Triplet


@dataclass(slots=True, eq=False)
class Sample:
    """One choice of one call as a piece of a path."""

    joined: JoinedCall
    choice: Choice
    before: Sample | None
    """The sample whose prompt and response this one's prompt begins with."""
    after: list[Sample] = field(default_factory=list["Sample"])
    """Samples that continue this one."""

    @property
    def call_id(self) -> str:
        return self.joined.call.id

    @property
    def continued(self) -> bool:
        """The conversation continued with this choice, or the call had only one.

        An ``n > 1`` call that nothing continues has no continued choice: nothing states which
        one the agent used, so only a reward that names a choice can train it.
        """
        return bool(self.after) or len(self.joined.call.choices) == 1


def link(calls: Iterable[JoinedCall]) -> list[Sample]:
    """Chain one agent's calls, given in causal order, by exact token ids.

    A call continues the longest earlier sample whose prompt and response its prompt begins
    with, token by token and image by image; history that was edited, trimmed or rendered differently
    matches none and starts a path of its own. Where equal samples exist (repeated prompts, parallel runs), the
    one of the same agent run is taken, and of those one that nothing continues yet.
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
    """Cut linked samples into root-to-leaf paths, in the order of their first call.

    Each sample lies on exactly one path. Where several continue one sample, the first call's
    continued choice keeps the path and the others start their own, with the shared part as
    context.

    Args:
        rewards: Call id and choice index to the rewards aimed at exactly that choice.
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
