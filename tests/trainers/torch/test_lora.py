"""Adapters: trained apart, served together, exported whole."""

from __future__ import annotations

import asyncio
import json

import pytest
import torch
from agl_torch.engine import TorchEngine
from agl_torch.losses.cross_entropy import CrossEntropy
from agl_torch.models import without_progress_bars
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from agl_core.errors import ConfigError, TrainingError
from agl_core.interfaces import AlgorithmSetup
from agl_core.types import Policy

LORA = {"rank": 4, "alpha": 16}
SETUP = AlgorithmSetup(name="sft", loss_factory=CrossEntropy, lr=1e-2)


PROMPT = [257, 84, 82, 68, 81, 198, 64, 258, 198, 257, 64, 82, 82, 72, 82, 83, 64, 77, 83, 198]
"""What the template makes of a user who says "a"."""


@pytest.fixture
def policies(model_path):
    return [
        Policy(name="p", model=model_path, trainable=True),
        Policy(name="q", model=model_path, trainable=True),
        Policy(name="f", model=model_path),
    ]


async def teach(engine, make_batch, sampled, *, policy="p", target=70, steps=5):
    for step in range(steps):
        sample = sampled(PROMPT, [target] * 4, [0.0] * 4)
        await engine.update(make_batch([sample], policy=policy, step=step))


async def test_the_export_is_the_live_model_and_not_the_base(
    run_engine, client, policies, model_path, sampled, make_batch, recompute, tmp_path
):
    async with run_engine(policies[:1], SETUP, lora=LORA) as engine:
        await teach(engine, make_batch, sampled)
        reply = await client(engine, "p").ask(max_tokens=8)
        await engine.save("p", str(tmp_path / "one"), resumable=False)
        await engine.save("p", str(tmp_path / "two"), resumable=False)
    answer = reply.answers[0]
    merged = recompute(str(tmp_path / "one"), reply.prompt, answer.tokens)
    assert answer.logprobs == pytest.approx(merged, abs=2e-5)
    base = recompute(model_path, reply.prompt, answer.tokens)
    assert max(abs(a - b) for a, b in zip(merged, base, strict=True)) > 1e-3
    first, second = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()


async def test_the_adapter_by_itself_is_in_pefts_format(
    run_engine, policies, model_path, sampled, make_batch, tmp_path
):
    async with run_engine(policies[:1], SETUP, lora=LORA) as engine:
        await teach(engine, make_batch, sampled)
        await engine.save("p", str(tmp_path), resumable=False)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["lora_alpha"], config["r"]) == (16, 4)
    ids = torch.tensor([[257, 64, 258, 70, 70]])
    with without_progress_bars(), torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        plain = base(input_ids=ids).logits
        weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
        name = "model.layers.0.self_attn.q_proj"
        delta = (
            weights[f"base_model.model.{name}.lora_B.weight"]
            @ weights[f"base_model.model.{name}.lora_A.weight"]
        )
        change = merged.get_parameter(f"{name}.weight") - base.get_parameter(f"{name}.weight")
        assert torch.allclose(change, 16 / 4 * delta, atol=1e-6)
        with pytest.warns(FutureWarning):
            adapted = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
        assert torch.allclose(
            adapted(input_ids=ids).logits, merged(input_ids=ids).logits, atol=1e-4
        )
        assert not torch.allclose(merged(input_ids=ids).logits, plain, atol=1e-2)


async def test_adapters_on_one_base_do_not_touch_each_other(
    run_engine, client, policies, sampled, make_batch
):
    async with run_engine(policies, SETUP, lora=LORA) as engine:
        marks = {name: await engine.fingerprint(name) for name in "pqf"}
        said = {n: (await client(engine, n).ask(seed=1, max_tokens=8)).answers for n in "qf"}
        await teach(engine, make_batch, sampled, policy="p")
        assert await engine.fingerprint("p") != marks["p"]
        for name in "qf":
            assert await engine.fingerprint(name) == marks[name]
            assert (await client(engine, name).ask(seed=1, max_tokens=8)).answers == said[name]
        await teach(engine, make_batch, sampled, policy="q", target=80, steps=40)
        await teach(engine, make_batch, sampled, policy="p", target=70, steps=40)
        for name, target in (("p", 70), ("q", 80)):
            said = (await client(engine, name).ask("a", temperature=0, max_tokens=3)).answers[0]
            assert said.tokens == [target] * 3


async def test_a_fresh_adapter_changes_nothing(run_engine, client, policies, recompute, model_path):
    async with run_engine(policies, SETUP, lora=LORA) as engine:
        for name in "pqf":
            reply = await client(engine, name).ask(max_tokens=6)
            answer = reply.answers[0]
            expected = recompute(model_path, reply.prompt, answer.tokens)
            assert answer.logprobs == pytest.approx(expected, abs=2e-5)


async def test_the_frozen_fingerprint_does_not_depend_on_adapters(run_engine, policies):
    async with run_engine(policies, SETUP, lora=LORA) as engine:
        frozen = await engine.fingerprint("f")
    async with run_engine(policies[2:]) as engine:
        assert await engine.fingerprint("f") == frozen


async def test_the_same_seed_makes_the_same_adapter(run_engine, policies):
    marks = []
    for seed in (1, 1, 2):
        chosen = AlgorithmSetup(name="sft", loss_factory=CrossEntropy, seed=seed)
        async with run_engine(policies[:1], chosen, lora=LORA) as engine:
            marks.append(await engine.fingerprint("p"))
    assert marks[0] == marks[1] != marks[2]


async def test_the_divergence_is_to_the_base(run_engine, policies, sampled, make_batch):
    chosen = AlgorithmSetup(name="sft", loss_factory=CrossEntropy, lr=1e-2, kl_weight=1e-6)
    async with run_engine(policies[:1], chosen, lora=LORA) as engine:
        batch = make_batch([sampled([257, 64, 258], [70] * 4, [0.0] * 4)])
        kl = [(await engine.update(batch)).metrics["kl"] for _ in range(6)]
    assert kl[0] == pytest.approx(0.0, abs=1e-9)
    assert kl[-1] > 0.01


async def test_an_adapter_that_does_not_fit_is_refused(
    run_engine, policies, sampled, make_batch, tmp_path
):
    async with run_engine(policies[:1], SETUP, lora=LORA) as engine:
        await engine.save("p", str(tmp_path))
        path = tmp_path / "adapter" / "adapter_model.safetensors"
        state = load_file(path)
        name, tensor = next(iter(state.items()))
        save_file({**state, f"{name}.odd": tensor.clone()}, path)
        with pytest.raises(ConfigError, match="odd"):
            await engine.load("p", str(tmp_path), version=1)
        await asyncio.to_thread(path.unlink)
        with pytest.raises(ConfigError, match="no adapter"):
            await engine.load("p", str(tmp_path), version=1)


async def test_an_adapter_is_float32_on_a_bfloat16_model(
    run_engine, policies, sampled, make_batch, tmp_path
):
    policies = [policies[0], policies[2]]
    async with run_engine(policies, SETUP, lora=LORA, dtype="bfloat16") as engine:
        frozen = await engine.fingerprint("f")
        weights = engine._policies["p"].weights
        assert {parameter.dtype for _, parameter in weights.parameters()} == {torch.float32}
        await teach(engine, make_batch, sampled, steps=2)
        assert {parameter.dtype for _, parameter in weights.parameters()} == {torch.float32}
        assert await engine.fingerprint("f") == frozen
        await engine.save("p", str(tmp_path), resumable=False)
    model = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in model.values()} == {torch.bfloat16}
    adapter = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in adapter.values()} == {torch.float32}


@pytest.mark.parametrize("name", ["mlp", "model", "lora_A", "0", "self_attn"])
async def test_a_policy_may_be_named_like_a_layer(
    run_engine, client, model_path, sampled, make_batch, recompute, tmp_path, name
):
    policies = [Policy(name=n, model=model_path, trainable=True) for n in ("p", name)]
    async with run_engine(policies, SETUP, lora=LORA) as engine:
        mine, other = (engine._policies[n].weights.parameters() for n in (name, "p"))
        assert [n for n, _ in mine] == [n for n, _ in other]
        assert not {id(p) for _, p in mine} & {id(p) for _, p in other}
        await teach(engine, make_batch, sampled, policy=name)
        await teach(engine, make_batch, sampled, policy="p", target=90)
        for policy in ("p", name):
            mark = await engine.fingerprint(policy)
            reply = await client(engine, policy).ask(max_tokens=6)
            await engine.save(policy, str(tmp_path / policy))
            whole = tmp_path / f"{policy}-whole"
            await engine.export(str(tmp_path / policy), str(whole))
            merged = recompute(str(whole), reply.prompt, reply.answers[0].tokens)
            assert reply.answers[0].logprobs == pytest.approx(merged, abs=2e-5)
            await teach(engine, make_batch, sampled, policy=policy, target=80)
            assert await engine.fingerprint(policy) != mark
            await engine.load(policy, str(tmp_path / policy), version=1)
            assert await engine.fingerprint(policy) == mark


async def test_targets_that_fit_no_layer_are_refused(run_engine, policies):
    with pytest.raises(ConfigError, match="made_up"):
        async with run_engine(policies[:1], SETUP, lora={"targets": ["made_up"]}):
            pass


async def test_shared_embeddings_take_no_adapter(run_engine, policies):
    with pytest.raises(ConfigError, match="share"), pytest.warns(UserWarning, match="tie_word"):
        async with run_engine(policies[:1], SETUP, lora={"targets": ["q_proj", "lm_head"]}):
            pass


async def test_an_embedding_takes_no_adapter(run_engine, build_model, tmp_path):
    path = build_model(tmp_path, tie_word_embeddings=False)
    policy = Policy(name="p", model=path, trainable=True)
    with pytest.raises(ConfigError, match="name an embedding"):
        async with run_engine([policy], SETUP, lora={"targets": ["q_proj", "embed_tokens"]}):
            pass


def files_of(directory):
    return {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for path in directory.rglob("*")
        if path.is_file()
    }


async def test_a_checkpoint_holds_the_adapter_alone(
    run_engine, policies, sampled, make_batch, tmp_path
):
    """G10: no weight of the frozen model is in it, and the optimizer's state is there once."""
    async with run_engine(policies[:1], SETUP, lora=LORA) as engine:
        await teach(engine, make_batch, sampled)
        await engine.save("p", str(tmp_path / "checkpoint"))
        await engine.save("p", str(tmp_path / "whole"), resumable=False)
    files, whole = files_of(tmp_path / "checkpoint"), files_of(tmp_path / "whole")
    states = [name for name in files if "training_state" in name]
    weights = [name for name in files if name.endswith(".safetensors")]
    assert states == ["training_state.pt"]
    assert weights == ["adapter/adapter_model.safetensors"]
    assert "model.safetensors" in whole
    names = load_file(tmp_path / "checkpoint" / "adapter" / "adapter_model.safetensors")
    assert all(".lora_" in name for name in names)


async def test_the_export_of_a_checkpoint_equals_the_live_model(
    run_engine, policies, sampled, make_batch, tmp_path
):
    """G10: merged on export, bit for bit as the engine that trained it would write it."""
    async with run_engine(policies[:1], SETUP, lora=LORA) as engine:
        await teach(engine, make_batch, sampled)
        await engine.save("p", str(tmp_path / "checkpoint"))
        await engine.save("p", str(tmp_path / "live"), resumable=False)
    await TorchEngine.export(str(tmp_path / "checkpoint"), str(tmp_path / "out"))
    live, out = (load_file(tmp_path / name / "model.safetensors") for name in ("live", "out"))
    assert live.keys() == out.keys()
    assert all(torch.equal(live[name], out[name]) for name in live)
    assert not [name for name in files_of(tmp_path / "out") if "training_state" in name]
    async with run_engine(policies[:1], SETUP, lora=LORA) as engine:
        await engine.load("p", str(tmp_path / "out"), version=1)


async def test_an_adapter_is_a_model_of_its_own_for_a_run_that_begins_with_it(
    run_engine, client, policies, sampled, make_batch, tmp_path
):
    """G10: `model = "<checkpoint>/policies/<name>"` serves and trains the merged weights."""
    async with run_engine(policies[:1], SETUP, lora=LORA) as engine:
        await teach(engine, make_batch, sampled)
        await engine.save("p", str(tmp_path / "checkpoint"))
        said = (await client(engine, "p").ask(temperature=0, max_tokens=8)).answers[0].tokens
    there = str(tmp_path / "checkpoint")
    frozen = Policy(name="f", model=there)
    trained = Policy(name="p", model=there, trainable=True)
    async with run_engine([frozen, trained], SETUP, lora=LORA) as engine:
        for name in "fp":
            answer = (await client(engine, name).ask(temperature=0, max_tokens=8)).answers[0]
            assert answer.tokens == said
        await teach(engine, make_batch, sampled, target=80, steps=40)
        await engine.save("p", str(tmp_path / "second"))
        mark = await engine.fingerprint("p")
        said = (await client(engine, "p").ask(temperature=0, max_tokens=8)).answers[0].tokens
    await TorchEngine.export(str(tmp_path / "second"), str(tmp_path / "out"))
    async with run_engine([Policy(name="p", model=str(tmp_path / "out"))]) as engine:
        answer = (await client(engine, "p").ask(temperature=0, max_tokens=8)).answers[0]
        assert answer.tokens == said
    async with run_engine([trained], SETUP, lora=LORA) as engine:
        await engine.load("p", str(tmp_path / "second"), version=1)
        assert await engine.fingerprint("p") == mark


async def test_an_adapter_of_other_weights_is_refused(run_engine, policies, build_model, tmp_path):
    """G10: it is nothing without the weights that it was trained on."""
    async with run_engine(policies[:1], SETUP, lora=LORA) as engine:
        await engine.save("p", str(tmp_path / "checkpoint"))
    other = Policy(name="p", model=build_model(tmp_path / "other", seed=9), trainable=True)
    async with run_engine([other], SETUP, lora=LORA) as engine:
        with pytest.raises(TrainingError, match="restore those weights"):
            await engine.load("p", str(tmp_path / "checkpoint"), version=1)
    base = tmp_path / "checkpoint" / "adapter" / "base.json"
    base.write_text(base.read_text().replace(policies[0].model, str(tmp_path / "gone")))
    with pytest.raises(ConfigError, match="gone"):
        await TorchEngine.export(str(tmp_path / "checkpoint"), str(tmp_path / "out"))
    base.unlink()
    with pytest.raises(ConfigError, match=r"base\.json"):
        await TorchEngine.export(str(tmp_path / "checkpoint"), str(tmp_path / "out"))


@pytest.mark.parametrize("file", ["adapter/adapter_model.safetensors", "model.safetensors"])
async def test_weights_that_are_cut_off_are_a_typed_error(run_engine, policies, tmp_path, file):
    """E2: also where no checksum tells."""
    async with run_engine(policies[:1], SETUP, lora=LORA) as engine:
        await engine.save("p", str(tmp_path), resumable=False)
        path = tmp_path / file
        data = await asyncio.to_thread(path.read_bytes)
        await asyncio.to_thread(path.write_bytes, data[: len(data) // 2])
        if file.startswith("adapter"):
            with pytest.raises(ConfigError, match="cannot be read"):
                await engine.load("p", str(tmp_path), version=1)
    if not file.startswith("adapter"):
        with pytest.raises(ConfigError, match="cannot be loaded"):
            async with run_engine([Policy(name="p", model=str(tmp_path))]):
                pass
