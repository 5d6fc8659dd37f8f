"""Batches made as a run makes them: recorded attempts, groups, credits, forest."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from agl_testing.attempts import TRAINED, ScriptedAttempt
from hypothesis import settings
from hypothesis import strategies as st

from agl_core.adapters import TrajectoryAdapter, forest
from agl_core.config import RolloutConfig
from agl_core.errors import TrainingError
from agl_core.training._batcher import Batcher
from agl_core.training.groups import GroupBuilder
from agl_core.types import Batch, CallCredit, FailureKind, Sampling, TrajectoryGroup, Triplet

FEW = settings(max_examples=25, deadline=None)
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=3)


class EveryToken:
    """Credits every choice, siblings too, with an advantage and a weight of its own per token."""

    loss = "policy_gradient"

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        return [self._credit(triplet) for triplet in triplets_of([group])]

    def _credit(self, triplet: Triplet) -> CallCredit:
        size = len(triplet.response_ids)
        return CallCredit(
            call_id=triplet.call_id,
            choice=triplet.choice,
            advantages=[self.random.uniform(-2, 2) for _ in range(size)],
            weights=[self.random.choice([0.0, 0.25, 1.0, 1.0, 2.0]) for _ in range(size)],
        )


class Counted:
    """Gives the choices the advantages 1, 2, ... and every token the weight 1."""

    loss = "policy_gradient"

    def __init__(self) -> None:
        self.count = 0

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        return [self._credit(triplet) for triplet in triplets_of([group])]

    def _credit(self, triplet: Triplet) -> CallCredit:
        self.count += 1
        size = len(triplet.response_ids)
        return CallCredit(
            call_id=triplet.call_id,
            choice=triplet.choice,
            advantages=[float(self.count)] * size,
            weights=[1.0] * size,
        )


def triplets_of(groups):
    return [
        triplet
        for group in groups
        for trajectories in group.trajectories
        for trajectory in trajectories
        for triplet in trajectory.calls
    ]


@dataclass
class Case:
    groups: list[TrajectoryGroup]
    batch: Batch

    @property
    def triplets(self) -> dict[int, Triplet]:
        """Triplet of each entry of the batch's `call_ids`."""
        found = {(t.call_id, t.choice): t for t in triplets_of(self.groups)}
        by_id: dict[str, list[Triplet]] = {}
        for (call_id, _), triplet in sorted(found.items(), key=lambda item: item[0]):
            by_id.setdefault(call_id, []).append(triplet)
        terms = {}
        for call, targets in paths_of(self.batch).items():
            for triplet in by_id[self.batch.call_ids[call]]:
                whole = (*triplet.prompt_ids, *triplet.response_ids)
                if all(path == whole[: len(path)] for path, *_ in targets):
                    terms[call] = triplet
        return terms


def paths_of(batch):
    """Call to its terms: (path with target, advantage, weight, logprob, temperature)."""
    found = {}
    for index, (node, call) in enumerate(zip(batch.nodes, batch.calls, strict=True)):
        path = [batch.targets[index]]
        at = node
        while at >= 0:
            path.append(batch.tokens[at])
            at = batch.parents[at]
        temperature = batch.temperatures[index]
        found.setdefault(call, []).append(
            (
                tuple(path[::-1]),
                batch.advantages[index],
                batch.weights[index],
                batch.logprobs[index],
                temperature if temperature > 0 else 1.0,
            )
        )
    return found


def terms_of(row):
    """The same of a row."""
    tokens = [*row.prompt.tolist(), *row.response.tolist()]
    start = len(row.prompt)
    return [
        (
            tuple(tokens[: start + at + 1]),
            float(row.advantages[at]),
            float(row.weights[at]),
            float(row.logprobs[at]),
            float(np.float32(row.temperature)),
        )
        for at in np.flatnonzero(row.mask)
    ]


def groups_of(records):
    adapter = TrajectoryAdapter(["*"], policies=[TRAINED])
    failures = dict.fromkeys(FailureKind, "drop")
    rollout = RolloutConfig(failures=failures)
    return GroupBuilder(adapter, rollout=rollout, max_error_share=0.0).build(records).groups


def case_of(records, algorithm) -> Case:
    groups = groups_of(records)
    (batch,), _ = Batcher(algorithm, forest).build(groups, step=0)
    return Case(groups, batch)


def conversations(seed=0):
    """Two tasks, two agents in one conversation, merged turns, rewards that differ."""
    scripts = []
    for task in range(2):
        for attempt in range(3):
            script = ScriptedAttempt(f"{task}{attempt}", task=f"t{task}", group=f"t{task}")
            history = [1, task]
            for turn in range(1 + attempt * (task + 1)):
                answer = [(attempt + turn + seed) % 7, turn % 5, 2][: 1 + (turn + attempt) % 3]
                script.call("ab"[turn % 2], history, answer)
                history = [*history, *answer, 6]
            script.reward([0.0, 1.0, 0.25][(attempt + task + seed) % 3])
            scripts.append(script.record())
    return scripts


@st.composite
def records(draw):
    """Attempts of up to three tasks whose agents continue, fork, repeat and edit histories.

    The first call has one answer, which is trained: siblings that nothing continued are trained by
    a reward that names one of them alone.
    """
    scripts = []
    for task in range(draw(st.integers(1, 3))):
        opening = draw(TOKENS)
        for attempt in range(draw(st.integers(1, 3))):
            script = ScriptedAttempt(f"{task}{attempt}", task=f"t{task}", group=f"t{task}")
            histories = [[], opening]
            for number in range(draw(st.integers(1, 5))):
                prompt = [*draw(st.sampled_from(histories)), *draw(st.just([]) | TOKENS)] or [0]
                if draw(st.integers(0, 4)) == 0:
                    prompt[draw(st.integers(0, len(prompt) - 1))] = 9
                most = 2 if scripts or number else 1
                responses = draw(st.lists(TOKENS, min_size=1, max_size=most))
                sampling = Sampling(
                    n=len(responses), temperature=draw(st.sampled_from([1.0, 1.0, 0.5]))
                )
                agent = draw(st.sampled_from("ab"))
                script.call(agent, prompt, *responses, sampling=sampling)
                histories += [[*prompt, *response] for response in responses]
            script.reward(draw(st.sampled_from([0.0, 0.5, 1.0])))
            scripts.append(script)
    return [script.record() for script in scripts]


@st.composite
def cases(draw):
    """A batch with random credits: the first of them, from a drawn seed on, that have a weight."""
    drawn = draw(records())
    for seed in range(draw(st.integers(0, 99)), 1000):
        try:
            return case_of(drawn, EveryToken(seed))
        except (ValueError, TrainingError):
            continue
    raise AssertionError("no credits with a weight above 0")
