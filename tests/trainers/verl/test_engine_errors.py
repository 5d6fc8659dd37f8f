"""What the engine refuses before a process is started. Ray is not started."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from agl_verl._engine import VerlEngine
from agl_verl._options import VerlOptions
from agl_verl.cpu._server import CpuServer

from agl_core._builtin import load_plugins
from agl_core.app.parts import make_algorithm, make_engine
from agl_core.config.loader import resolve
from agl_core.errors import AglError, ConfigError, EngineError
from agl_core.types import Policy
from tests.trainers.verl import verl_parts  # noqa: F401 (verl imported without its warnings)
from tests.trainers.verl.test_trainer import batch_of, trainer

ray = pytest.importorskip("ray")

MODEL = Path(__file__).parents[3] / "examples" / "agl_demo" / "model"


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch):
    """Whoever gets as far as Ray has not been refused in time."""

    def init(**arguments):
        raise ConnectionError("Ray is not there")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


def engine(setup=True, **options):
    config = resolve({"engine": {"name": "verl", "device": "cpu", **options}, "algorithm": "grpo"})
    plugins = load_plugins()
    return make_engine(config, plugins, make_algorithm(config, plugins)[1] if setup else None)


def policy(name="p", *, model=MODEL, trainable=True):
    return Policy(name=name, model=str(model), trainable=trainable)


async def refused(made, *policies):
    with pytest.raises(AglError) as raised:
        await made.start(policies)
    return raised.value


@pytest.fixture
def copied(tmp_path):
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


async def test_a_good_configuration_gets_as_far_as_ray():
    error = await refused(engine(), policy(), policy("q", trainable=False))
    assert str(error).startswith("Cannot start Ray on this machine: Ray is not there")


async def test_two_trainable_policies_are_named_with_what_can_be_done():
    error = await refused(engine(), policy("one"), policy("two"))
    assert isinstance(error, ConfigError)
    for told in ("one, two", "policies.NAME.agents", "engine.name = 'torch'"):
        assert told in str(error)


async def test_to_serve_only_any_number_may_be_trainable():
    error = await refused(engine(setup=False), policy("one"), policy("two"))
    assert "Cannot start Ray" in str(error)


async def test_a_wrong_path_is_named(tmp_path):
    error = await refused(engine(), policy(model=tmp_path / "nowhere"))
    assert isinstance(error, ConfigError)
    assert str(tmp_path / "nowhere") in str(error)


async def test_a_directory_without_a_model_is_named(tmp_path):
    error = await refused(engine(), policy(model=tmp_path))
    assert isinstance(error, ConfigError)
    assert str(tmp_path) in str(error)


@pytest.mark.parametrize("lacking", ["config.json", "tokenizer.json", "model.safetensors"])
async def test_a_directory_that_lacks_a_file_of_the_model_is_named(copied, lacking):
    (copied / lacking).unlink()
    error = await refused(engine(), policy(model=copied))
    assert isinstance(error, ConfigError)
    assert f"Cannot load model '{copied}'" in str(error)


async def test_a_wrong_path_of_a_frozen_policy_is_named_too(tmp_path):
    error = await refused(engine(), policy(), policy("q", model=tmp_path / "x", trainable=False))
    assert isinstance(error, ConfigError)
    assert str(tmp_path / "x") in str(error)


async def test_a_tokenizer_without_a_chat_template_is_named(copied):
    (copied / "chat_template.jinja").unlink()
    error = await refused(engine(), policy(model=copied))
    assert isinstance(error, ConfigError)
    assert "no chat template" in str(error)
    assert "chat_template.jinja" in str(error)


async def test_a_wrong_option_of_verls_is_named():
    given = {"actor_rollout_ref": {"actor": {"ppo_max_token_len_per_gp": 9}}}
    error = await refused(engine(verl=given), policy())
    assert isinstance(error, ConfigError)
    assert "did you mean 'ppo_max_token_len_per_gpu'" in str(error)


async def test_a_wrong_option_of_the_cpus_server_is_named():
    with pytest.raises(ConfigError, match=r"engine_kwargs\.agl_cpu.*max_batchs"):
        await CpuServer(str(MODEL), {"device": "cpu", "max_batchs": 3}).start()


async def test_an_engine_that_did_not_start_can_be_stopped_and_has_no_policy():
    made = VerlEngine(VerlOptions(device="cpu"), None)
    with pytest.raises(ConfigError, match="has no policy 'p'"):
        made.backend("p")
    await made.stop()
    await made.stop()
    with pytest.raises(EngineError, match="was stopped"):
        await made.start([policy()])


async def test_what_is_not_trained_is_not_updated_or_saved(tmp_path):
    batch = batch_of([[1.0, 0.0]])
    made = engine(setup=False)
    await refused(made, policy(batch.policy))
    with pytest.raises(ConfigError, match="to serve only: give it an algorithm"):
        await made.update(batch)
    with pytest.raises(ConfigError, match="to serve only"):
        await made.save(batch.policy, str(tmp_path))


async def test_what_is_not_trained_has_no_other_setup():
    setup = _setup(name="grpo")
    with pytest.raises(ConfigError, match="made to serve only: give it an algorithm"):
        await engine(setup=False).configure(setup)


def test_a_setup_is_checked_before_the_start():
    made = engine()
    made.check_setup(_setup(name="grpo", lr=0.5))
    made.check_setup(_setup(name="verl", policy_loss="gspo"))
    alien = dataclasses.replace(_setup(name="grpo"), loss_factory=_loss_of("parley"))
    with pytest.raises(ConfigError, match="Engine 'verl' has no loss 'parley', which algorithm"):
        made.check_setup(alien)


def _setup(**algorithm):
    config = resolve({"engine": "verl", "algorithm": algorithm})
    return make_algorithm(config, load_plugins())[1]


def _loss_of(name):
    from agl_core.app.parts import _loss_factory

    config = resolve({"engine": "verl", "algorithm": "grpo"})
    return _loss_factory(config, SimpleNamespace(loss=name, loss_options={}), load_plugins())


async def test_a_frozen_policy_is_not_updated():
    batch = batch_of([[1.0, 0.0]])
    made = engine()
    await refused(made, policy("other"), policy(batch.policy, trainable=False))
    made._trainer, workers = trainer()  # as if Ray had been there
    with pytest.raises(ConfigError, match=rf"is frozen: set trainable in policies\.{batch.policy}"):
        await made.update(batch)
    assert workers.updates == []


def test_a_wrong_device_is_named():
    with pytest.raises(ConfigError, match=r"device.*auto.*cpu.*cuda"):
        engine(device="tpu")
