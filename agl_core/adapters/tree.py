"""Prefix trees over exact token ids, which connect an agent's calls to trajectories."""

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
