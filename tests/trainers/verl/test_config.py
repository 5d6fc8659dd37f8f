"""verl's configuration: what is kept of its defaults, and what is refused before anything starts."""

from __future__ import annotations

import pytest
from agl_verl import _compat
from agl_verl import _config_checks as config_checks
from agl_verl._config import make_config
from agl_verl._options import VerlOptions
from omegaconf import OmegaConf

from agl_core.config.loader import check_options, resolve
from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup

pytestmark = pytest.mark.usefixtures("composed_once")

ROOT = "actor_rollout_ref"
SETUP = AlgorithmSetup(
    name="grpo",
    loss_factory=lambda: None,
    seed=7,
    lr=3e-4,
    weight_decay=0.1,
    max_grad_norm=0.5,
    kl_weight=0.02,
)


@pytest.fixture
def gpu(monkeypatch):
    """vLLM and flash-attn are installed."""
    monkeypatch.setattr(config_checks, "find_spec", lambda name: name)
    monkeypatch.setattr("agl_verl._config.find_spec", lambda name: name)
    return "cuda"


def made(given=None, *, device="cpu", setup=None, actor=None):
    return make_config(given or {}, device=device, model="a/model", setup=setup, actor=actor or {})


def below(path, value):
    """``{"a": {"b": value}}`` of ``a.b``."""
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def leaves(tree, path=""):
    if not isinstance(tree, dict) or not tree:
        return {path: tree}
    found = {}
    for key, value in tree.items():
        found |= leaves(value, f"{path}.{key}" if path else key)
    return found


def changed(config, defaults):
    """Leaves that differ from verl's; a value that is read from such a leaf is none."""
    old = OmegaConf.create(defaults)
    OmegaConf.set_struct(old, False)
    written = leaves(OmegaConf.to_container(config, resolve=True))
    for path in set(written) & set(leaves(OmegaConf.to_container(old))):
        node = OmegaConf.select(old, path.rpartition(".")[0])
        if not OmegaConf.is_interpolation(node, path.rpartition(".")[2]):
            OmegaConf.update(old, path, written[path])
    derived = leaves(OmegaConf.to_container(old, resolve=True))
    original = leaves(OmegaConf.to_container(defaults, resolve=False))
    return {
        path
        for path, value in written.items()
        if derived.get(path, ...) != value or (path in original and _differs(original[path], value))
    }


def _differs(original, value):
    return not (isinstance(original, str) and "${" in original) and original != value


def test_on_a_gpu_every_default_is_verls_but_what_the_engine_needs(defaults, gpu):
    assert changed(made(device=gpu), defaults) == {
        f"{ROOT}.actor.checkpoint.save_contents",
        f"{ROOT}.actor.fsdp_config.strategy",
        f"{ROOT}.actor.strategy",
        f"{ROOT}.actor.use_dynamic_bsz",
        f"{ROOT}.model.path",
        f"{ROOT}.ref.fsdp_config.strategy",
        f"{ROOT}.rollout.engine_kwargs.agl_cpu",
        f"{ROOT}.model.lora.merge",
        f"{ROOT}.rollout.load_format",
        f"{ROOT}.rollout.max_model_len",
        f"{ROOT}.rollout.name",
        f"{ROOT}.rollout.response_length",
        f"{ROOT}.rollout.tensor_model_parallel_size",
        # A table that is not read here, and takes the rollout's.
        "distillation.teacher_models.teacher_model.inference.response_length",
        "trainer.n_gpus_per_node",
    }


def test_a_cpu_has_no_bfloat16_no_compiler_and_a_server_of_its_own(defaults, gpu):
    config = made()
    more = changed(config, defaults) - changed(made(device=gpu), defaults)
    optim = f"{ROOT}.ref.optim"  # the actor's, as a whole
    assert {path.rpartition(".")[2] for path in more if not path.startswith(f"{optim}.")} == {
        "attn_implementation",
        "buffer_dtype",
        "device",
        "dtype",
        "enable_gradient_checkpointing",
        "free_cache_engine",
        "forward_only",
        "param_dtype",
        "ppo_max_token_len_per_gpu",
        "reduce_dtype",
        "use_remove_padding",
        "use_torch_compile",
    }
    assert config[ROOT].rollout.name == "agl_cpu"
    assert config[ROOT].ref.optim == config[ROOT].actor.optim


def test_the_reference_computes_as_the_policy_does():
    root = made()[ROOT]
    assert root.ref.strategy == root.actor.strategy
    for name in ("dtype", "mixed_precision", "model_dtype", "strategy", "use_torch_compile"):
        assert root.ref.fsdp_config[name] == root.actor.fsdp_config[name]


def test_a_run_says_how_to_train():
    config = made(setup=SETUP, actor={"clip_ratio": 0.3, "policy_loss": {"loss_mode": "gspo"}})
    actor = config[ROOT].actor
    assert config[ROOT].model.path == "a/model"
    assert (actor.optim.lr, actor.optim.weight_decay, actor.optim.clip_grad) == (3e-4, 0.1, 0.5)
    assert actor.optim.betas == [0.9, 0.999]
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.fsdp_config.seed) == (True, 0.02, 7)
    assert (actor.clip_ratio, actor.policy_loss.loss_mode) == (0.3, "gspo")
    assert actor.policy_loss.ppo_kl_coef == 0.1
    assert not made()[ROOT].actor.use_kl_loss


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{ROOT}.actor.ppo_max_token_len_per_gpu", 99),
        (f"{ROOT}.actor.strategy", "fsdp"),
        (f"{ROOT}.actor.fsdp_config.mixed_precision.param_dtype", "bf16"),
        (f"{ROOT}.actor.optim.betas", [0.8, 0.9]),
        (f"{ROOT}.model.lora_rank", 8),
        (f"{ROOT}.model.override_config.attn_implementation", "eager"),
        (f"{ROOT}.model.override_config.rope_theta", 1e6),
        (f"{ROOT}.model.target_modules", ["q_proj"]),
        (f"{ROOT}.rollout.engine_kwargs.vllm.max_loras", 2),
        (f"{ROOT}.rollout.engine_kwargs.agl_cpu.max_batch", 2),
        (f"{ROOT}.rollout.dtype", "bfloat16"),
        (f"{ROOT}.rollout.prompt_length", "${actor_rollout_ref.actor.ppo_max_token_len_per_gpu}"),
        ("trainer.nnodes", 2),
        ("ray_kwargs.ray_init.object_store_memory", 10**8),
        ("ray_kwargs.ray_init.runtime_env.env_vars.HF_HOME", "x"),
    ],
)
def test_what_the_user_writes_is_taken_last(path, value):
    config = made(below(path, value), setup=SETUP)
    expected = OmegaConf.select(config, value[2:-1]) if "${" in str(value) else value
    assert OmegaConf.select(config, path) == expected


def test_keys_that_verls_classes_know_and_its_file_does_not_pass():
    given = below(f"{ROOT}.actor.fsdp_config.mixed_precision", {"reduce_dtype": "bf16"})
    assert made(given)[ROOT].actor.fsdp_config.mixed_precision == {
        "param_dtype": "fp32",
        "reduce_dtype": "bf16",
        "buffer_dtype": "fp32",
    }


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"{ROOT}.model.lora_rnk", f"no option 'verl.{ROOT}.model.lora_rnk': .* 'lora_rank'"),
        (f"{ROOT}.actr.optim", "'verl.actor_rollout_ref.actr': did you mean 'actor'"),
        (f"{ROOT}.actor.fsdp_config.mixed_precison", "did you mean 'mixed_precision'"),
        (f"{ROOT}.zzz", r"'verl.actor_rollout_ref.zzz': it has actor, hybrid_engine, model"),
        (f"{ROOT}.rollout.engine_kwargs.vlm", "did you mean 'vllm'"),
        ("ray_kwargs.rayinit", "did you mean 'ray_init'"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(path, message):
    with pytest.raises(ConfigError, match=message):
        made(below(path, 1))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "data.train_batch_size",
            r"'verl.data' belongs to verl's own trainer.*train.tasks_per_step",
        ),
        ("algorithm.adv_estimator", r"use \[algorithm\]"),
        ("reward.reward_manager", r"use \[\[rewards\]\]"),
        ("critic.optim", "an estimator that needs no critic"),
        (
            "trainer.total_epochs",
            r"'verl.trainer.total_epochs'.*\[train\].*n_gpus_per_node, nnodes",
        ),
        ("trainer.logger", r"'verl.trainer.logger'.*use \[\[trackers\]\] with name = 'verl'"),
        ("nonsense", "the keys read are actor_rollout_ref, ray_kwargs, trainer"),
        (f"{ROOT}.actor.optim.lr", "is what algorithm.lr says: set that"),
        (f"{ROOT}.model.path", "is what model says: set that"),
        (f"{ROOT}.rollout.n", "is what algorithm.group_size says"),
        ("ray_kwargs.ray_init.address", "is what engine.ray_address says"),
        (f"{ROOT}.actor.checkpoint.save_contents", "cannot be set: a checkpoint holds all"),
        (f"{ROOT}.actor.use_dynamic_bsz", "cannot be set: micro-batches are filled up"),
        ("trainer.device", "cannot be set: engine.device says it"),
    ],
)
def test_a_key_that_belongs_elsewhere_is_sent_there(path, message):
    with pytest.raises(ConfigError, match=message):
        made(below(path, 1))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (ROOT, 3, "verl.actor_rollout_ref = 3: must be a table"),
        ("trainer", None, "verl.trainer = None: must be a table"),
        (f"{ROOT}.actor.optim", "adam", "must be a table"),
        (f"{ROOT}.actor.ppo_max_token_len_per_gpu", "many", "'many': must be a number"),
        (f"{ROOT}.rollout.gpu_memory_utilization", True, "must be a number"),
        (f"{ROOT}.rollout.enforce_eager", "yes", "must be true or false"),
        (f"{ROOT}.actor.optim.min_lr_ratio", {"a": 1}, "must be a number"),
        ("trainer.n_gpus_per_node", 0, "n_gpus_per_node = 0: must be a whole number, 1 or more"),
        ("trainer.nnodes", 1.5, "nnodes = 1.5: must be a whole number"),
        (f"{ROOT}.rollout.tensor_model_parallel_size", 2, "takes 2 devices.*there are 1, "),
        (f"{ROOT}.actor.strategy", "megatron", "'megatron': rows are trained with fsdp or fsdp2"),
        (f"{ROOT}.rollout.name", "vlllm", "'vlllm': on device 'cpu' verl serves with one of agl_c"),
        (f"{ROOT}.rollout.prompt_length", "${nope}", r"a reference under \[verl\] is wrong.*nope"),
    ],
)
def test_a_value_that_cannot_work_is_refused(path, value, message):
    with pytest.raises(ConfigError, match=message):
        made(below(path, value))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (f"{ROOT}.rollout.mode", "sync", "refuses verl.actor_rollout_ref.rollout: .*has been remo"),
        (f"{ROOT}.rollout.expert_parallel_size", 3, "refuses verl.actor_rollout_ref.rollout: "),
        (f"{ROOT}.actor.fsdp_config.strategy", "x", "refuses verl.actor_rollout_ref.actor: .* x "),
    ],
)
def test_what_verl_refuses_is_told_in_its_words(path, value, message):
    with pytest.raises(ConfigError, match=message) as raised:
        made(below(path, value))
    assert "full_key" not in str(raised.value)


def test_all_problems_are_told_at_once():
    given = {"data": {}, ROOT: {"actr": 1, "model": {"path": "x"}, "rollout": {"seed": "x"}}}
    with pytest.raises(ConfigError) as raised:
        made(given)
    for told in ("verl.data", "verl.actor_rollout_ref.actr", "model says", "rollout.seed"):
        assert told in str(raised.value)


def test_replicas_must_divide_the_devices(gpu):
    rollout = {"tensor_model_parallel_size": 2, "data_parallel_size": 2}
    given = {ROOT: {"rollout": rollout}, "trainer": {"n_gpus_per_node": 4, "nnodes": 2}}
    assert made(given, device=gpu)[ROOT].rollout.tensor_model_parallel_size == 2
    given["trainer"] = {"n_gpus_per_node": 6}
    with pytest.raises(ConfigError, match=r"takes 4 devices.*there are 6, "):
        made(given, device=gpu)


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ({"n_gpus_per_node": 2}, r"read with rollout.nnodes alone.*verl.trainer.n_gpus_per_node"),
        ({"nnodes": 1, "n_gpus_per_node": 0}, "n_gpus_per_node = 0: must be a whole number"),
        ({"nnodes": -1}, r"rollout.nnodes = -1: must be a whole number"),
        (
            {"nnodes": 1, "n_gpus_per_node": 3, "tensor_model_parallel_size": 2},
            r"takes 2 devices.*there are 3, verl.actor_rollout_ref.rollout.n_gpus_per_node",
        ),
        (
            {"nnodes": 1, "checkpoint_engine": {"backend": "naive"}},
            r"'naive', and .*nnodes = 1: 'naive' is for replicas on the trainer's devices",
        ),
        ({"checkpoint_engine": {"backend": "nccl"}}, r"'nccl', and .*nnodes = 0: 'naive' is for"),
        (
            {"nnodes": 1, "checkpoint_engine": {"backend": "pigeon"}},
            r"'pigeon': Checkpoint engine pigeon not registered.*agl_gloo",
        ),
        (
            {"nnodes": 1, "checkpoint_engine": {"custom_backend_module": "no_such_module"}},
            "No module named 'no_such_module'",
        ),
    ],
)
def test_devices_for_rollouts_that_cannot_work_are_refused(rollout, message):
    with pytest.raises(ConfigError, match=message):
        made({ROOT: {"rollout": rollout}})


def test_replicas_on_devices_of_their_own_get_weights_by_the_devices_kind(gpu, monkeypatch):
    apart = {ROOT: {"rollout": {"nnodes": 1}}}
    assert made(apart)[ROOT].rollout.checkpoint_engine.backend == "agl_gloo"
    assert made({})[ROOT].rollout.checkpoint_engine.backend == "naive"
    registry = _compat.CheckpointEngineRegistry
    monkeypatch.setitem(registry._registry, "nccl", object)
    assert made(apart, device=gpu)[ROOT].rollout.checkpoint_engine.backend == "nccl"


def test_a_transfer_that_lacks_a_package_says_which(gpu, monkeypatch):
    monkeypatch.delitem(_compat.CheckpointEngineRegistry._registry, "nccl", raising=False)
    with pytest.raises(ConfigError, match=r"backend = 'nccl': .*failed to import: .*cupy"):
        made({ROOT: {"rollout": {"nnodes": 1}}}, device=gpu)


def test_a_server_that_is_not_installed_is_named():
    with pytest.raises(ConfigError, match=r"'vllm', but vllm is not installed.*'verl\[vllm\]'"):
        made(device="cuda")


def test_a_table_of_verls_name_and_overrides_reach_verl():
    data = {
        "algorithm": "verl",
        "model": "m",
        "verl": below(f"{ROOT}.actor.ppo_max_token_len_per_gpu", 2048),
    }
    config = resolve(
        data,
        [f"verl.{ROOT}.model.lora_rank=4", f"verl.{ROOT}.actor.optim.min_lr_ratio=1e-2"],
    )
    assert config.engine.options["verl"][ROOT]["model"] == {"lora_rank": 4}
    options = check_options(config.engine, VerlOptions, where="engine")
    root = made(options.verl)[ROOT]
    assert (root.actor.ppo_max_token_len_per_gpu, root.model.lora_rank) == (2048, 4)
    assert root.actor.optim.min_lr_ratio == 0.01


@pytest.mark.parametrize("lora", [{"lora_rank": 8}, {"lora": {"rank": 8}}])
def test_verl_saves_an_adapter_without_the_frozen_model(lora):
    """G10: in its training state, which the full weights would stand in twice."""
    checkpoint = made({ROOT: {"model": lora}})[ROOT].actor.checkpoint
    assert checkpoint.save_lora_only
    assert "hf_model" not in checkpoint.save_contents
    assert "hf_model" in made()[ROOT].actor.checkpoint.save_contents


def test_the_options_may_stand_in_the_engines_table_too():
    config = resolve({"engine": {"name": "verl", "verl": {"trainer": {"nnodes": 2}}}})
    options = check_options(config.engine, VerlOptions, where="engine")
    assert made(options.verl).trainer.nnodes == 2


def test_a_wrong_key_of_the_engine_is_found_too():
    config = resolve({"engine": {"name": "verl", "ray_adress": "auto"}})
    with pytest.raises(ConfigError, match="ray_address"):
        check_options(config.engine, VerlOptions, where="engine")
