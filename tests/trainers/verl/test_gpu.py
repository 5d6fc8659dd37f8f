"""What a run on a GPU gives verl and vLLM, rendered and compared with a GPU's memory on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from agl_verl import _compat, memory
from agl_verl import _config as config
from agl_verl import _config_checks as config_checks
from agl_verl import _gpu_memory as gpu_memory
from agl_verl import _plan as plan
from agl_verl._config import Served, make_config, use_of
from agl_verl.memory import GB, Shape, Use
from click.testing import CliRunner
from omegaconf import OmegaConf

from agl_core.config.loader import load_config
from agl_core.errors import ConfigError, EngineError

pytestmark = pytest.mark.usefixtures("composed_once")

ROOT = "actor_rollout_ref"
EXAMPLES = Path(__file__).parents[3] / "examples"
QWEN = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
}
"""Qwen2.5-1.5B-Instruct."""
SHAPE = Shape(28, 1536, 8960, 151936, 12, 2, 128, tied=True)


@pytest.fixture
def installed(monkeypatch):
    """Names of the packages that can be imported beside vLLM."""
    there = {"vllm"}
    for module in (config, config_checks):
        monkeypatch.setattr(module, "find_spec", lambda name: name if name in there else None)
    return there


def made(rollout=None, *, trainer=None, model=None, actor=None, **served):
    given = {ROOT: {"rollout": rollout or {}, "model": model or {}, "actor": actor or {}}}
    if trainer:
        given["trainer"] = trainer
    return make_config(
        given, device="cuda", model="m", setup=None, actor={}, served=Served(**served)
    )


def test_attention_is_torchs_without_flash_attn(installed):
    """H1: verl would ask transformers for flash_attention_2, which then is an ImportError."""
    model = made()[ROOT].model
    assert model.override_config.attn_implementation == "sdpa"
    assert model.use_remove_padding is False
    installed.add("flash_attn")
    model = made()[ROOT].model
    assert "attn_implementation" not in model.override_config
    assert model.use_remove_padding is True


@pytest.mark.parametrize(("frozen", "share"), [(0, 0.5), (1, 0.3), (2, 0.2), (3, 0.15)])
def test_the_share_of_a_gpu_follows_the_number_of_replicas(installed, frozen, share):
    """H2: at most 0.3 of one GPU for each of two."""
    assert made(frozen=frozen)[ROOT].rollout.gpu_memory_utilization == share


def test_frozen_models_share_out_the_gpus(installed):
    """H2: two frozen models on eight GPUs are on two of them."""
    many = made(trainer={"n_gpus_per_node": 8}, frozen=2)
    assert many[ROOT].rollout.gpu_memory_utilization == 0.3


def test_shares_that_exceed_a_gpu_are_refused_with_the_sum(installed):
    """H2: 0.5 twice is what vLLM refused."""
    with pytest.raises(ConfigError, match=r"holds 2 of them .*2 x 0\.5 = 1, more than 0\.9.*0\.3"):
        made({"gpu_memory_utilization": 0.5}, frozen=1)
    assert made({"gpu_memory_utilization": 0.45}, frozen=1)
    assert made({"gpu_memory_utilization": 0.9})


@pytest.mark.parametrize(
    ("served", "longest"),
    [
        ({}, 16385),
        ({"context": 4096}, 4096),
        ({"context": 131072}, 16385),
        ({"context": 131072, "row_tokens": 2000}, 2001),
    ],
)
def test_answers_are_as_long_as_a_row_or_the_context_allows(installed, served, longest):
    """H3: verl gives response_length to vLLM as a limit, and no max_model_len is the whole context.

    One token more than a row: a call that is cut there is too long, which is an error of the run.
    """
    rollout = made(**served)[ROOT].rollout
    assert (rollout.max_model_len, rollout.response_length) == (longest, longest)


def test_limits_of_the_users_own(installed):
    """H3: a longer context than the model's is refused, and a limit of every answer has no place."""
    rollout = made({"max_model_len": 2048}, context=4096)[ROOT].rollout
    assert (rollout.max_model_len, rollout.response_length) == (2048, 2048)
    with pytest.raises(
        ConfigError, match="max_model_len = 8192, but the model's context holds 4096"
    ):
        made({"max_model_len": 8192}, context=4096)
    with pytest.raises(ConfigError, match=r"response_length' cannot be set: .*rollout\.max_tokens"):
        made({"response_length": 512})


def test_sglang_is_refused_with_the_reason(installed):
    """H5: it would refuse the first message of the first agent."""
    installed.add("sglang")
    with pytest.raises(ConfigError, match=r"'sglang' cannot train: .*skip_tokenizer_init.*'vllm'"):
        made({"name": "sglang"})


def test_a_transfer_without_cupy_names_the_line_that_installs_it(installed, monkeypatch):
    """H6: verl[vllm] has no cupy."""
    registry = _compat.CheckpointEngineRegistry
    monkeypatch.delitem(registry._registry, "nccl", raising=False)
    apart = {"nnodes": 1, "n_gpus_per_node": 1}
    with pytest.raises(ConfigError, match=r"pip install 'verl\[cupy-cu130\]'"):
        made(apart)
    monkeypatch.setitem(registry._registry, "nccl", object)
    assert made(apart)[ROOT].rollout.checkpoint_engine.backend == "nccl"


def test_fsdp_2_trains_unless_the_first_is_asked_for(installed):
    """H7: actor, its engine and the reference agree."""
    for strategy, actor in (("fsdp2", {}), ("fsdp", {"strategy": "fsdp"})):
        root = made(actor=actor)[ROOT]
        assert root.actor.strategy == root.actor.fsdp_config.strategy == strategy
        assert root.ref.fsdp_config.strategy == strategy
        checked = _compat.omega_conf_to_dataclass(root.actor)
        assert checked.fsdp_config.strategy == strategy


def test_the_shape_counts_the_models_parameters():
    """H7: within a hundredth of what transformers makes of the same configuration."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    asked = transformers.Qwen2Config(**{k: v for k, v in QWEN.items() if k != "architectures"})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(asked)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert Shape.of(asked) == SHAPE
    assert SHAPE.parameters == pytest.approx(count, rel=0.01)


def test_sixteen_bytes_a_parameter_train():
    """H7: weights, gradients and moments, by N GPUs; LoRA trains its adapter alone."""
    parts = {part.what: part.size for part in memory.parts_of(SHAPE, USE, 80 * GB)}
    named = ("weights in float32", "Adam's moments", "gradients")
    assert sum(parts[name] for name in named) == 16 * SHAPE.parameters
    shared = memory.parts_of(SHAPE, use(gpus=8), 80 * GB)
    assert next(part.size for part in shared if part.what == named[0]) == SHAPE.parameters // 2
    adapted = {part.what: part.size for part in memory.parts_of(SHAPE, use(rank=32), 80 * GB)}
    assert adapted["gradients"] == 4 * SHAPE.adapter(32) < parts["gradients"] / 20


def use(**fields):
    return Use(**{"micro_batch": 16384, "share": 0.5, **fields})


USE = use()


def test_what_does_not_fit_is_refused_with_the_sum():
    """H2, H7: two replicas at 0.4, as the page had it, with a trained 1.5B on 80 GB."""
    memory.check_fits(SHAPE, use(share=0.3, frozen=1), 80 * GB, longest=16385)
    with pytest.raises(ConfigError, match=r"training needs \d+\.\d GB \(weights in float32 6\.2"):
        memory.check_fits(SHAPE, use(share=0.4, frozen=1), 80 * GB, longest=16385)
    with pytest.raises(ConfigError, match="training needs"):
        memory.check_fits(SHAPE, USE, 24 * GB, longest=16385)


def test_a_replica_without_room_for_one_call_is_refused():
    """H3: vLLM does not start where its longest sequence does not fit."""
    found = memory.problems(SHAPE, use(share=0.07, micro_batch=512), 80 * GB, longest=131072)
    assert any("fewer than rollout.max_model_len = 131072" in each for each in found)


@pytest.fixture
def run_file(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN))
    file = tmp_path / "run.toml"
    file.write_text(
        'agents = ["writer"]\nalgorithm = "verl"\nengine = {device = "cuda"}\n'
        f"model = {json.dumps(str(tmp_path / 'model'))}\n"
    )
    return str(file)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="shows that vLLM need not be installed")
def test_a_run_is_rendered_without_a_gpu(run_file):
    """H1-H7: what goes to verl, accepted by its classes, and the sums; nothing is started."""
    done = CliRunner().invoke(plan.command, [run_file, "--gpu-memory", "80"], standalone_mode=False)
    assert done.exception is None
    written = OmegaConf.create(done.output)
    assert written.rollout.max_model_len == 16385
    assert written.rollout.gpu_memory_utilization == 0.3
    assert written.actor.strategy == "fsdp2"
    for section in ("actor", "rollout"):
        _compat.omega_conf_to_dataclass(written[section])
    for told in ("6.17 GB  weights in float32: 4 P / N (always)", "It fits."):
        assert told in done.output
    assert done.return_value == 0


@pytest.mark.parametrize(
    "name",
    sorted(
        file.parent.name
        for file in EXAMPLES.glob("*/gpu.toml")
        if 'name = "verl"' in file.read_text()
    ),
)
def test_an_example_for_gpus_is_what_verl_accepts(name, run_file):
    """Issue 15: also as `tests/gpu/programs.sh` sets it for one GPU."""
    overrides = (
        f"model={Path(run_file).parent / 'model'}",
        "verl.trainer.n_gpus_per_node=1",
        "verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384",
    )
    for chosen in (overrides[:1], overrides):
        config = load_config(EXAMPLES / name / "gpu.toml", chosen)
        assert plan.plan_of(config, device="cuda").verl.actor_rollout_ref.actor.clip_ratio_high


def test_a_run_with_phases_is_planned_as_its_first_with_the_reference_of_any(run_file):
    phases = [
        {"algorithm": "verl", "policy_loss": "gspo", "steps": 1},
        {"algorithm": "grpo", "steps": 1, "kl_weight": 0.2},
    ]
    rendered = plan.plan_of(load_config(run_file, (f"phases={json.dumps(phases)}",)), device="cuda")
    actor = rendered.verl.actor_rollout_ref.actor
    assert actor.policy_loss.loss_mode == "gspo"
    assert (actor.use_kl_loss, actor.kl_loss_coef) == (True, 0.2)


def test_a_run_that_does_not_fit_says_so(run_file):
    """H2, H7: with the sum, as an exit status and as the check of `agl doctor`."""
    overrides = ["--set", "verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu=65536"]
    done = CliRunner().invoke(plan.command, [run_file, *overrides], standalone_mode=False)
    assert done.return_value == 1
    assert "# training needs" in done.output


def test_longer_answers_than_are_served_are_refused(run_file):
    """H3: rather than cut in silence."""
    overrides = ("rollout.max_tokens=20000",)
    with pytest.raises(
        ConfigError, match=r"rollout\.max_tokens = 20000, but .* 16385 tokens together"
    ):
        plan.plan_of(load_config(run_file, overrides), device="cuda")


@pytest.mark.parametrize(("size", "severity"), [(141, "ok"), (24, "error")])
def test_the_doctor_gives_the_same_sum(run_file, monkeypatch, size, severity):
    """H2, H7: before a run."""
    monkeypatch.setattr(plan, "own_memory", lambda: size * GB)
    (finding,) = plan.check([], load_config(run_file, ()))
    assert (finding.check, finding.severity) == ("verl.memory", severity)
    rendered = plan.plan_of(load_config(run_file, ()), device="cuda")
    parts = memory.parts_of(rendered.shape, rendered.use, size * GB)
    assert (finding.figures["serving"], finding.figures["training"]) == memory.totals(parts)


def test_the_doctor_has_nothing_to_say_of_other_engines(run_file, monkeypatch):
    monkeypatch.setattr(plan, "own_memory", lambda: 24 * GB)
    assert (
        list(plan.check([], load_config(run_file, ("engine.name=torch", "algorithm=grpo")))) == []
    )
    monkeypatch.setattr(plan, "own_memory", lambda: None)
    assert list(plan.check([], load_config(run_file, ()))) == []


SMI = """#!/bin/sh
case "$1" in
  *query-gpu*) cat {directory}/gpus ;;
  *) echo "GPU-a, 4711, 61440, VLLM::EngineCore, of a run" ;;
esac
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """An nvidia-smi that says what a test writes: MiB that are free on GPU 1."""
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.format(directory=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def free(mebibytes):
        Path(tmp_path / "gpus").write_text(
            f"0, GPU-other, 81920, 100\n1, GPU-a, 81920, {mebibytes}\n2, GPU-b, [N/A], [N/A]\n"
        )

    return free


@pytest.mark.parametrize("visible", ["1", "GPU-a"])
def test_a_replica_waits_until_the_old_one_has_left_its_gpu(smi, monkeypatch, visible):
    """H8: and goes on as soon as there is room."""
    polls = []

    def sleep(_):
        polls.append(None)
        smi(60_000)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(gpu_memory, "sleep", sleep)
    smi(10_000)
    gpu_memory.await_free_of(None, 0.5)
    assert len(polls) == 1


def test_who_holds_the_memory_of_a_gpu_is_named(smi):
    """H8: after the time is over."""
    smi(10_000)
    with pytest.raises(EngineError) as refused:
        gpu_memory.await_free(["1"], 0.5, wait_s=0)
    assert "GPU 1 has 10.5 of 85.9 GB free" in str(refused.value)
    assert "process 4711 (VLLM::EngineCore, of a run) with 61440 MiB" in str(refused.value)
    smi(60_000)
    gpu_memory.await_free(["1"], 0.5, wait_s=0)


@pytest.mark.parametrize(
    ("variables", "rate"),
    [
        ({"AGL_MODEL": "a/model"}, "1e-6"),
        ({"AGL_MODEL": "a/model", "AGL_LR": "5e-6"}, "5e-6"),
        ({}, None),
    ],
)
def test_a_real_model_is_trained_at_a_rate_for_one(variables, rate):
    """H10: the example's 3e-4 is for its tiny model."""
    script = Path(__file__).parents[2] / "gpu" / "verl.sh"
    environment = {**os.environ, "AGL_DEVICE": "cuda", "AGL_DRY": "1", "PYTHON": sys.executable}
    for name in ("AGL_MODEL", "AGL_LR"):
        environment.pop(name, None)
    done = subprocess.run(
        ["bash", str(script)],
        env=environment | variables,
        check=True,
        capture_output=True,
        text=True,
    )
    settings = done.stdout.split()
    assert "engine.device=cuda" in settings
    rates = [each.partition("=")[2] for each in settings if each.startswith("algorithm.lr=")]
    assert rates == ([] if rate is None else [rate])


def test_without_nvidia_smi_nothing_is_waited_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    gpu_memory.await_free(["0"], 0.9, wait_s=0)


def test_a_plan_counts_the_replicas_of_the_fullest_gpu(installed):
    """H2: what the sums are made of."""
    shared = use_of(made(frozen=1), Served(frozen=1))
    assert (shared.frozen, shared.share, shared.apart) == (1, 0.3, False)
    apart = made(
        {"nnodes": 1, "n_gpus_per_node": 1, "checkpoint_engine": {"backend": "x"}}, here=False
    )
    assert use_of(apart, Served()).apart
