"""Another setup between phases: what verl's workers get, and what they keep."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
from agl_testing.fake_openai import FakeOpenAI, FakeOptions
from agl_verl import _engine as verl_engine
from agl_verl._config import make_config
from agl_verl._loss import CrossEntropy, PolicyLoss, PolicyLossOptions
from agl_verl._trainer import STATE

from agl_core._builtin import load_plugins
from agl_core.app import App, Inputs
from agl_core.config.loader import resolve
from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup
from tests.core.app.conftest import two_agents
from tests.trainers.verl import verl_parts
from tests.trainers.verl.test_bad_runs import MODEL, Cluster, TrainedWorkers, Verl, same_for_all
from tests.trainers.verl.test_trainer import batch_of, trainer

pytestmark = pytest.mark.usefixtures("composed_once")

GRPO = PolicyLoss(PolicyLossOptions(clip_low=0.1, clip_high=0.3))
SETUP = AlgorithmSetup(name="grpo", loss_factory=lambda: GRPO, lr=1e-3)


class Changing(TrainedWorkers):
    """Workers that keep what they are reconfigured with."""

    def __init__(self, ranks=1):
        super().__init__(ranks)
        self.actors = []
        self.loaded = 0

    def reconfigure(self, actor):
        self.actors.append(actor)

    def load_checkpoint(self, *, local_path, del_local_after_load):
        self.loaded += 1


def config_of(setup, loss, **given):
    return make_config(given, device="cpu", model="a/model", setup=setup, actor=loss.actor)


def changing(**setup):
    made, _ = trainer(**setup)
    made._workers = Changing()
    return made, made._workers


class TestTrainer:
    def test_workers_get_the_actor_of_a_run_with_the_setup(self):
        made, workers = changing()
        setup = dataclasses.replace(SETUP, lr=5e-4, weight_decay=0.1, max_grad_norm=0.5)
        made.configure(setup, GRPO, config_of(setup, GRPO))
        (actor,) = workers.actors
        assert (actor.optim.lr, actor.optim.weight_decay, actor.optim.clip_grad) == (5e-4, 0.1, 0.5)
        assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, 0.3)
        assert actor.policy_loss.loss_mode == "vanilla"
        assert not actor.use_kl_loss

    def test_epochs_minibatches_and_loss_are_those_of_the_new_setup(self):
        made, workers = changing(epochs=2)
        made.train(batch_of([[1.0, 0.0], [0.0, 1.0]]))
        assert len(workers.updates) == 2
        assert not all(_values(tensors, "advantages") == {1.0} for tensors in workers.updates)
        workers.updates.clear()
        loss = CrossEntropy()
        setup = dataclasses.replace(SETUP, minibatches=2)
        made.configure(setup, loss, config_of(setup, loss))
        made.train(batch_of([[1.0, 0.0], [0.0, 1.0]]))
        assert len(workers.updates) == 2
        assert [len(tensors) for tensors in workers.updates] == [2, 2]
        assert all(_values(tensors, "advantages") == {1.0} for tensors in workers.updates)

    def test_a_loss_with_a_row_per_call_gets_one(self):
        made, workers = changing()
        made.train(batch_of([[1.0, 0.0]], turns=2))
        gspo = PolicyLoss(PolicyLossOptions(policy_loss="gspo"))
        made.configure(SETUP, gspo, config_of(SETUP, gspo))
        made.train(batch_of([[1.0, 0.0]], turns=2))
        assert [len(tensors) for tensors in workers.updates] == [2, 4]

    def test_a_divergence_needs_the_weights_of_the_start(self):
        made, workers = changing()
        setup = dataclasses.replace(SETUP, kl_weight=0.1)
        with pytest.raises(ConfigError, match=r"kl_weight is 0\.1, .* did not keep the initial"):
            made.configure(setup, GRPO, config_of(setup, GRPO))
        assert workers.actors == []

    def test_a_divergence_may_begin_and_end(self):
        made, workers = changing(kl_weight=0.2)
        off, on = SETUP, dataclasses.replace(SETUP, kl_weight=0.1)
        for setup in (off, on):
            made.configure(setup, GRPO, config_of(setup, GRPO))
        assert [(each.use_kl_loss, each.kl_loss_coef) for each in workers.actors] == [
            (False, 0.0),
            (True, 0.1),
        ]

    def test_what_is_loaded_is_trained_with_the_setup_of_now(self, tmp_path):
        (tmp_path / STATE).mkdir()
        made, workers = changing()
        made.configure(SETUP, GRPO, config_of(SETUP, GRPO))
        made.load(tmp_path)
        assert workers.loaded == 1
        assert [actor.optim.lr for actor in workers.actors] == [SETUP.lr, SETUP.lr]


def _values(tensors, name):
    parts = zip(tensors[name].unbind(), tensors["response_mask"].unbind(), strict=True)
    return {float(value) for part, mask in parts for value in part[mask.bool()]}


class Inner:
    """Stands for verl's inner worker: a real optimizer with a schedule, and a loss to set."""

    def __init__(self, warmup=0):
        self.model_config = SimpleNamespace()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.AdamW([self.weight], lr=1e-2, weight_decay=0.0)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, step / warmup) if warmup else 1.0
        )
        self.optimizer_config = SimpleNamespace(clip_grad=1.0)
        self.loss_fn = None

    @property
    def engine(self):
        return self

    def set_loss_fn(self, loss_fn):
        self.loss_fn = loss_fn

    def step(self):
        self.weight.grad = torch.ones(2)
        self.optimizer.step()
        self.lr_scheduler.step()


@pytest.fixture
def actor():
    """A worker as verl has made it, without its processes."""
    from agl_verl._worker import Actor

    made = object.__new__(Actor)
    made.actor = Inner()
    return made


def reconfigured(actor, setup, loss=GRPO, **optim):
    given = {"actor_rollout_ref": {"actor": {"optim": optim}}} if optim else {}
    actor.reconfigure(config_of(setup, loss, **given).actor_rollout_ref.actor)
    (group,) = actor.actor.optimizer.param_groups
    return group


class TestWorker:
    def test_the_loss_is_verls_with_the_new_options(self, actor):
        reconfigured(actor, dataclasses.replace(SETUP, kl_weight=0.1))
        loss = actor.actor.loss_fn
        assert loss.func is verl_parts.ppo_loss
        settings = loss.keywords["config"]
        assert isinstance(settings, verl_parts.FSDPActorConfig)
        assert (settings.clip_ratio_low, settings.clip_ratio_high) == (0.1, 0.3)
        assert (settings.use_kl_loss, settings.kl_loss_coef) == (True, 0.1)
        assert settings.model_config is actor.actor.model_config
        reconfigured(actor, SETUP, CrossEntropy())
        settings = actor.actor.loss_fn.keywords["config"]
        assert settings.policy_loss.loss_mode == "gpg"
        assert not settings.use_kl_loss

    def test_rate_decay_and_clipping_change_and_moments_stay(self, actor):
        inner = actor.actor
        inner.step()
        moment = inner.optimizer.state[inner.weight]["exp_avg"].clone()
        setup = dataclasses.replace(SETUP, lr=0.5, weight_decay=0.1, max_grad_norm=0.3)
        group = reconfigured(actor, setup)
        assert (group["lr"], group["weight_decay"]) == (0.5, 0.1)
        assert inner.optimizer_config.clip_grad == 0.3
        assert inner.optimizer.state[inner.weight]["exp_avg"].equal(moment)
        inner.step()
        assert group["lr"] == 0.5
        assert inner.lr_scheduler.get_last_lr() == [0.5]

    def test_a_schedule_continues_with_the_new_rate(self, actor):
        actor.actor = inner = Inner(warmup=4)
        inner.step()
        assert reconfigured(actor, dataclasses.replace(SETUP, lr=0.8))["lr"] == 0.8 * 0.25
        inner.step()
        assert inner.optimizer.param_groups[0]["lr"] == 0.8 * 0.5

    def test_options_of_the_optimizer_itself_have_precedence_as_at_the_start(self, actor):
        override = {"override_optimizer_config": {"weight_decay": 0.7}}
        group = reconfigured(actor, dataclasses.replace(SETUP, weight_decay=0.1), **override)
        assert (group["lr"], group["weight_decay"]) == (SETUP.lr, 0.7)

    def test_a_rate_that_is_a_tensor_stays_one(self, actor):
        (group,) = actor.actor.optimizer.param_groups
        rate = group["lr"] = torch.tensor(1e-2)
        assert reconfigured(actor, SETUP)["lr"] is rate
        assert float(rate) == pytest.approx(SETUP.lr)


class TestRun:
    """A run of two phases; verl's processes are stood for."""

    @pytest.fixture
    def verl(self, monkeypatch):
        with FakeOpenAI(options=FakeOptions(stable=True)) as server:
            made = Verl(server.base_url.removeprefix("http://").removesuffix("/v1"))
            made.group = Changing()
            monkeypatch.setattr(verl_engine, "Replicas", made)
            monkeypatch.setattr(verl_engine, "Cluster", Cluster)
            yield made

    def test_each_phase_trains_with_its_own_loss_and_rate(self, verl, tmp_path):
        report = train(tmp_path, [sft(tmp_path), {"algorithm": "grpo", "steps": 1, "lr": 1e-4}])
        actors = verl.group.actors
        assert [(each.policy_loss.loss_mode, each.optim.lr) for each in actors] == [
            ("gpg", 1e-3),
            ("vanilla", 1e-4),
        ]
        assert [step.rollouts for step in report.steps] == [0, 4]
        first, second = verl.group.updates
        assert _values(first, "advantages") == {1.0}
        assert _values(second, "advantages") == {0.0}

    def test_phases_with_the_same_settings_change_nothing(self, verl, tmp_path):
        grpo = {"algorithm": "grpo", "steps": 1}
        train(tmp_path, [grpo, {**grpo, "group_size": 3}])
        assert verl.group.actors == []
        assert len(verl.group.updates) == 2


def sft(directory):
    turns = [{"role": "user", "content": "price?"}, {"role": "assistant", "content": "9 euros"}]
    data = directory / "answers.jsonl"
    data.write_text(json.dumps({"messages": turns, "agent": "writer"}) + "\n")
    return {"algorithm": "sft", "steps": 1, "data": [str(data)], "lr": 1e-3}


def train(directory, phases):
    config = resolve(
        {
            "name": "phases",
            "directory": str(directory),
            "agents": ["writer"],
            "model": MODEL,
            "store": {"name": "memory"},
            "engine": {"name": "verl", "device": "cpu"},
            "algorithm": {"group_size": 2},
            "phases": phases,
            "train": {"tasks_per_step": 2},
            "rollout": {"concurrency": 4, "timeout_s": 60.0, "max_tokens": 16},
        }
    )
    tasks = [{"input": number} for number in range(2)]
    inputs = Inputs(agent=two_agents, reward=same_for_all, tasks=tasks)
    return asyncio.run(App(config, inputs, plugins=load_plugins()).train())
