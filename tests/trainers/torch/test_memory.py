"""What training takes of a device's memory, and what is refused for want of it."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from agl_torch import _doctor as doctor
from agl_torch import _forward as forward
from agl_torch import _memory as memory
from agl_torch import _trainer as trainer
from agl_torch import engine
from agl_torch._forward import CausalModel
from agl_torch._memory import ModelShape, PassShape
from agl_torch.losses.cross_entropy import CrossEntropy
from agl_torch.training.batch import TensorBatch
from agl_torch.training.packing import Costs, Packer
from agl_torch.training.scoring import LogprobScorer
from transformers import AutoModelForCausalLM, CohereConfig, Gemma3TextConfig, Qwen2Config

from agl_core.config.loader import resolve
from agl_core.errors import ConfigError, EngineError, TrainingError
from agl_core.interfaces import AlgorithmSetup
from agl_core.types import Policy

CPU = torch.device("cpu")
PEAK_BEFORE = 3_435_151_360
"""Bytes of the update below at ad83916, where all logits existed at once."""
COMMON = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
}
SHAPES = {
    "full attention": Qwen2Config(**COMMON),
    "layers with a window": Gemma3TextConfig(
        **COMMON,
        head_dim=32,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "logits scaled after the head": CohereConfig(**COMMON, logit_scale=0.25),
}
BRANCHES, PATHS = "branches", "paths"
TOGETHER, APART = Costs(token=1.0, pair=0.0), Costs(token=1e-9, pair=1.0)
"""Of a packer that puts calls into one row, and of one that gives each its own."""


def learn(**fields):
    return AlgorithmSetup(**{"name": "sft", "loss_factory": CrossEntropy, "lr": 1e-3, **fields})


@pytest.fixture
def policy(model_path):
    return Policy(name="writer", model=model_path, trainable=True)


@pytest.fixture
def batch(sampled, make_batch):
    """One call whose log-probabilities are trained."""
    return make_batch([sampled([1, 2], [5, 6, 7], [-1.0] * 3)], policy="writer")


def samples_of(sampled, kind):
    """Calls of one conversation each, or several answers to the same prompts."""
    prompts = [[1, 2, 3, 4], [1, 9, 8]] if kind == BRANCHES else [[3 * i, 7, 8] for i in range(4)]
    return [
        sampled(prompt, [(11 * i + j) % 250 for j in range(20 + i)], [0.0] * (20 + i))
        for i, prompt in enumerate(prompts * (4 if kind == BRANCHES else 1))
    ]


def passes(batch, costs=APART):
    arrays = TensorBatch.of(batch, device=CPU)
    packer = Packer(costs, pack_tokens=4096)
    rows = packer.rows(arrays.forest, torch.arange(len(batch.nodes)).numpy())
    return arrays, [arrays.layout.pack(group, device=CPU) for group in packer.packs(rows)]


def alone(module, samples):
    """Log-probabilities by transformers, one call after the other."""
    found = []
    for sample in samples:
        ids = torch.tensor([[*sample.prompt, *sample.tokens]])
        logits = module(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1].float()
        scaled = torch.log_softmax(logits / sample.temperature, -1)
        found.append(scaled[torch.arange(len(sample.tokens)), torch.tensor(sample.tokens)])
    return torch.cat(found)


def gradients(module, logprobs):
    module.zero_grad()
    weights = torch.linspace(-1, 1, len(logprobs))
    (logprobs * weights).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])


@pytest.mark.parametrize("kind", [BRANCHES, PATHS])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk", [7 * 300, 2**24])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_are_those_of_the_whole_computation(
    sampled, make_batch, monkeypatch, kind, shape, chunk, recompute
):
    """H11: chunks, layers computed again and paths without a mask change no gradient."""
    monkeypatch.setattr(forward, "CHUNK_LOGITS", chunk)
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(SHAPES[shape], attn_implementation="sdpa").eval()
    samples = samples_of(sampled, kind)
    wanted = gradients(module, alone(module, samples))
    costs = TOGETHER if kind == BRANCHES else APART
    arrays, packs = passes(make_batch(samples), costs)
    assert all((pack.rows.mask is None) == (kind == PATHS) for pack in packs)
    scorer = LogprobScorer(CausalModel(module), autocast=None)
    found = torch.zeros(len(arrays.targets))
    for pack in packs:
        found = found.index_put((pack.terms,), scorer.logprobs(pack, arrays, recompute=recompute))
    given = gradients(module, found)
    assert (given - wanted).norm() < 1e-5 * wanted.norm()
    assert all("forward" not in vars(layer) for layer in module.modules())


def saved(module, batch, *, recompute, costs=APART):
    """Sizes of the tensors kept for the gradient, the weights left out."""
    sizes = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = (storage.nbytes(), tuple(tensor.shape), tensor)
        return tensor

    arrays, packs = passes(batch, costs)
    scorer = LogprobScorer(CausalModel(module), autocast=None)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for pack in packs:
            scorer.logprobs(pack, arrays, recompute=recompute)
    return list(sizes.values())


@pytest.fixture
def deep():
    torch.manual_seed(0)
    shape = {**COMMON, "num_hidden_layers": 8, "intermediate_size": 192}
    return AutoModelForCausalLM.from_config(Qwen2Config(**shape), attn_implementation="sdpa").eval()


@pytest.fixture
def long_path(sampled, make_batch):
    tokens = [i % 250 for i in range(400)]
    return make_batch([sampled([1], tokens, [0.0] * 400)])


def test_layers_computed_again_keep_their_input_alone(deep, long_path):
    """H11: what eight layers keep is at most a third with checkpointing."""
    whole = sum(size for size, *_ in saved(deep, long_path, recompute=False))
    kept = sum(size for size, *_ in saved(deep, long_path, recompute=True))
    assert kept < whole / 3


def test_a_path_has_no_mask_and_branches_share_one(deep, long_path, sampled, make_batch):
    """H11: no layer keeps a T x T tensor of its own."""

    def squares(batch, costs):
        shapes = [shape for _, shape, _ in saved(deep, batch, recompute=False, costs=costs)]
        return [shape for shape in shapes if shape[-1] > 300 and shape[-2:] == shape[-1:] * 2]

    assert squares(long_path, TOGETHER) == []
    tokens = [i % 250 for i in range(350)]
    branched = [sampled([1, 2, 3], [first, *tokens], [0.0] * 351) for first in (5, 6)]
    assert len(squares(make_batch(branched), TOGETHER)) == 1


@pytest.mark.parametrize("layers", [2, 12])
def test_the_sum_is_near_what_layers_keep(long_path, layers):
    """H11: the estimate that decides is within a third of what autograd keeps."""
    shape = {**COMMON, "num_hidden_layers": layers, "hidden_size": 128, "intermediate_size": 512}
    module = AutoModelForCausalLM.from_config(Qwen2Config(**shape), attn_implementation="sdpa")
    whole = sum(size for size, *_ in saved(module.eval(), long_path, recompute=False))
    one = PassShape(rows=1, tokens=400, terms=400, width=4, masked=False)
    parts = one.needs(ModelShape.of(module.config), recompute=False)
    assert whole == pytest.approx(parts["layers"], rel=0.34)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
def test_the_peak_is_at_most_half_of_what_it_was(build_model, tmp_path):
    """H11: 4,096 trained tokens at a vocabulary of 49,152; 0.33e9 were measured."""
    model = build_model(tmp_path, vocab_size=49_152, max_position_embeddings=8192)
    program = Path(__file__).with_name("peak_memory.py")
    done = subprocess.run(
        [sys.executable, str(program), model, "4096"], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) < PEAK_BEFORE / 2


async def test_a_run_that_cannot_fit_is_refused_with_the_sum(run_engine, policy, monkeypatch):
    """H11: weights, optimizer and a pass are summed before anything is loaded."""
    monkeypatch.setattr(memory, "total_memory", lambda _: 10_000_000)
    with pytest.raises(ConfigError) as refused:
        async with run_engine([policy], learn()):
            pass
    told = str(refused.value)
    for part in ("weights of policy writer", "gradients", "moments", "layers", "mask", "0.01 GB"):
        assert part in told
    monkeypatch.setattr(memory, "total_memory", lambda _: 2_000_000_000)
    async with run_engine([policy], learn()):
        pass


@pytest.mark.parametrize(("total", "severity"), [(10**7, "error"), (10**10, "ok")])
def test_the_doctor_gives_the_same_sum(model_path, monkeypatch, total, severity):
    """H11: before the run that would be refused."""
    monkeypatch.setattr(doctor, "total_memory", lambda _: total)
    given = {"agents": ["writer"], "model": model_path, "engine": {"device": "cpu"}}
    config = resolve({**given, "algorithm": {"name": "grpo"}})
    (finding,) = doctor.check([], config)
    assert (finding.check, finding.severity) == ("torch.memory", severity)
    assert set(finding.figures["parts"]) > {"gradients", "moments", "layers", "mask"}
    assert (finding.fix != "") == (severity == "error")


def test_the_doctor_gives_the_sum_of_a_model_that_a_plugin_names():
    """G8, H11: `model = "demo"`, as in the tutorial, is no name on the hub."""
    given = {"agents": ["writer"], "model": "demo", "engine": {"device": "cpu"}}
    (finding,) = doctor.check([], resolve({**given, "algorithm": {"name": "grpo"}}))
    assert finding.severity == "ok"


async def test_a_pass_that_cannot_fit_is_refused_with_the_sum(
    run_engine, policy, batch, monkeypatch
):
    """H11: one long path is never cut, so what it takes is compared with what is free."""
    async with run_engine([policy], learn()) as running:
        before = await running.fingerprint("writer")
        monkeypatch.setattr(trainer, "free_memory", lambda _: 1000)
        with pytest.raises(TrainingError, match=r"'writer': a pass over 1 rows of 4 tokens needs"):
            await running.update(batch)
        assert await running.fingerprint("writer") == before
        monkeypatch.setattr(trainer, "free_memory", lambda _: None)
        await running.update(batch)


@pytest.mark.parametrize(
    ("option", "room", "again"),
    [("auto", 2.5, False), ("auto", 1.5, True), ("always", 2.5, True), ("never", 1.5, False)],
)
async def test_layers_are_computed_again_where_memory_asks_for_it(
    run_engine, policy, batch, monkeypatch, option, room, again
):
    """H11: `auto` spends time only where the pass would take half of what is free."""
    asked = []
    scored = LogprobScorer.logprobs

    def logprobs(self, *arguments, recompute=False, **more):
        asked.append(recompute)
        return scored(self, *arguments, recompute=recompute, **more)

    monkeypatch.setattr(LogprobScorer, "logprobs", logprobs)
    async with run_engine([policy], learn(), gradient_checkpointing=option) as running:
        training = running._trainers["writer"]
        one = PassShape(rows=1, tokens=4, terms=3, width=4, masked=False)
        needed = sum(one.needs(training._shape, recompute=False).values())
        free = training._unallocated() + int(room * needed)
        monkeypatch.setattr(trainer, "free_memory", lambda _: free)
        await running.update(batch)
    assert asked == [again]


async def test_gpus_that_are_not_used_are_named(run_engine, policy, monkeypatch, caplog):
    """H11: a second GPU is not left idle in silence."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    with caplog.at_level(logging.WARNING):
        engine._name_idle_devices(torch.device("cuda"))
    assert "leaves idle: cuda:1 (card 1), cuda:2 (card 2)" in caplog.text
    caplog.clear()
    engine._name_idle_devices(CPU)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    engine._name_idle_devices(torch.device("cuda"))
    assert caplog.text == ""


@pytest.mark.parametrize("fields", [{}, {"temperature": 0}, {"top_p": 0.5}])
async def test_nan_logits_name_the_policy_and_the_step(run_engine, client, policy, batch, fields):
    """H12: no index is searched among numbers that are none."""
    async with run_engine([policy], learn(loss_factory=CrossEntropy)) as running:
        await running.update(batch)
        model = running._policies["writer"].weights.model
        model.get_input_embeddings().weight.data.fill_(float("nan"))
        with pytest.raises(EngineError) as failed:
            await client(running, "writer").ask("hi", max_tokens=2, **fields)
    told = str(failed.value)
    assert "Policy 'writer'" in told
    assert "version 1 of its weights, which training step 0 made" in told
    assert "NaN" in told


async def test_gradients_that_are_not_finite_name_the_policy_and_the_step(
    run_engine, policy, sampled, make_batch
):
    """H12: as the same weights would."""
    batch = make_batch([sampled([1], [5], [-1.0])], policy="writer", step=7)
    async with run_engine([policy], learn()) as running:
        model = running._policies["writer"].weights.model
        model.get_input_embeddings().weight.data.fill_(float("nan"))
        with pytest.raises(TrainingError, match="Policy 'writer', step 7: the gradient"):
            await running.update(batch)
