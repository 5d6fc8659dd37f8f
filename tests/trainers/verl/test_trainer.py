"""Which optimizer steps a batch becomes. verl's workers are stood for; what they get is real."""

from __future__ import annotations

import dataclasses

import pytest
from agl_testing.attempts import ScriptedAttempt
from agl_verl._loss import PolicyLoss, PolicyLossOptions
from agl_verl._options import VerlOptions
from agl_verl._trainer import WorkerTrainer
from omegaconf import OmegaConf

from agl_core.errors import ConfigError, TrainingError
from agl_core.interfaces import AlgorithmSetup
from agl_core.training.algorithms import GRPO, GRPOOptions
from tests.trainers.verl import verl_parts  # noqa: F401 (verl imported without its warnings)
from tests.trainers.verl.convert_cases import case_of


class Workers:
    """Stands for verl's group of workers: keeps what it is given, answers with set numbers."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.updates = []
        self.loss = 0.25

    def data_parallel_size(self):
        return [self.ranks] * self.ranks

    def update_actor(self, tensors):
        self.updates.append(tensors)
        return {"metrics": {"actor/loss": [self.loss], "actor/grad_norm": [1.5]}}


def trainer(*, ranks=1, limit=100, options=None, loss=None, **setup):
    workers = Workers(ranks)
    root = {"actor": {"ppo_max_token_len_per_gpu": limit}, "model": {"lora_rank": 0}}
    loss = loss or PolicyLoss(PolicyLossOptions())
    made = AlgorithmSetup(name="grpo", loss_factory=lambda: loss, **setup)
    config = OmegaConf.create({"actor_rollout_ref": root})
    return WorkerTrainer(workers, config, made, options or VerlOptions(), loss), workers


def attempts(rewards, *, turns=1):
    """A group per list of rewards, an attempt per reward."""
    for task, group in enumerate(rewards):
        for number, reward in enumerate(group):
            script = ScriptedAttempt(f"{task}{number}", task=f"t{task}", group=f"t{task}")
            history = [1, task]
            for turn in range(turns):
                script.call("a", history, [2 + number, turn])
                history = [*history, 2 + number, turn, 9]
            script.reward(reward)
            yield script.record()


def batch_of(rewards, **more):
    return case_of(list(attempts(rewards, **more)), GRPO(GRPOOptions())).batch


def test_groups_without_variance_still_take_a_step_that_moves_nothing_by_reward():
    made, workers = trainer()
    done = made.train(batch_of([[1.0, 1.0], [0.0, 0.0]]))
    (tensors,) = workers.updates
    assert not any(part.any() for part in tensors["advantages"].unbind())
    assert all((part > 0).any() for part in tensors["rollout_is_weights"].unbind())
    assert done.rows == {"a": 4}
    assert done.lost == {}
    assert done.metrics["optimizer_steps"] == 1.0
    assert done.metrics["skipped_minibatches"] == 0.0


def test_fewer_groups_than_minibatches_give_one_each():
    made, workers = trainer(minibatches=8)
    done = made.train(batch_of([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    assert [len(tensors) for tensors in workers.updates] == [2, 2, 2]
    assert done.metrics["optimizer_steps"] == 3.0


def test_every_epoch_steps_on_all_and_rows_are_counted_once():
    made, workers = trainer(epochs=2, minibatches=2)
    done = made.train(batch_of([[1.0, 0.0], [0.0, 1.0]]))
    assert len(workers.updates) == 4
    assert done.rows == {"a": 4}
    assert done.metrics["loss"] == 0.25
    assert done.metrics["grad_norm"] == 1.5


def test_a_minibatch_without_weight_is_skipped_and_counted():
    made, workers = trainer(minibatches=2)
    batch = batch_of([[1.0, 0.0], [0.0, 1.0]])
    first = [batch.groups[call] == 0 for call in batch.calls]
    weights = [weight * kept for weight, kept in zip(batch.weights, first, strict=True)]
    done = made.train(dataclasses.replace(batch, weights=weights))
    assert len(workers.updates) == 1
    assert done.metrics["optimizer_steps"] == 1.0
    assert done.metrics["skipped_minibatches"] == 1.0


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_no_number_of_rows_is_wrong_for_any_number_of_ranks(ranks):
    made, workers = trainer(ranks=ranks)
    done = made.train(batch_of([[1.0, 0.0, 0.5]]))
    (tensors,) = workers.updates
    assert len(tensors) % ranks == 0
    assert done.lost.get("rows_padded", 0) == len(tensors) - 3


def test_a_call_that_is_too_long_names_itself():
    made, _ = trainer(limit=3)
    with pytest.raises(TrainingError, match=r"Call .* of agent 'a' is 4 tokens long.*hold 3"):
        made.train(batch_of([[1.0, 0.0]]))


def test_long_calls_may_be_dropped_and_are_counted_by_agent():
    made, workers = trainer(limit=100, options=VerlOptions(overlong="drop", max_row_tokens=4))
    done = made.train(batch_of([[1.0, 0.0]], turns=2))
    assert len(workers.updates[0]) == 2
    assert done.lost == {"row_too_long_of_a": 2}
    assert done.rows == {"a": 2}


def test_a_batch_of_which_nothing_fits_says_what_to_raise():
    made, workers = trainer(limit=3, options=VerlOptions(overlong="drop"))
    with pytest.raises(
        TrainingError, match=r"Nothing of batch 0 .*3 tokens: raise .*token_len_per"
    ):
        made.train(batch_of([[1.0, 0.0]]))
    assert workers.updates == []


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run(loss):
    made, workers = trainer()
    workers.loss = loss
    with pytest.raises(TrainingError, match=r"The loss of an optimizer step is (nan|inf)"):
        made.train(batch_of([[1.0, 0.0]]))


def test_a_directory_of_another_engine_is_no_checkpoint(tmp_path):
    made, _ = trainer()
    with pytest.raises(ConfigError, match=f"{tmp_path} holds no training state of engine 'verl'"):
        made.load(tmp_path)
