"""Loading, sharing and saving, and what a wrong path or option gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agl_torch.engine import TorchEngine
from agl_torch.losses.cross_entropy import CrossEntropy
from agl_torch.options import TorchOptions

from agl_core.errors import ConfigError, EngineError
from agl_core.interfaces import AlgorithmSetup
from agl_core.types import Policy

SETUP = AlgorithmSetup(name="sft", loss_factory=CrossEntropy, lr=1e-2)


@pytest.mark.parametrize("path", ["", "./nowhere", "/nowhere/at/all", "~/nope"])
async def test_a_wrong_path_is_named(run_engine, path):
    with pytest.raises(ConfigError, match=path or "no model"):
        async with run_engine([Policy(name="p", model=path)]):
            pass


async def test_a_directory_without_a_model_is_named(run_engine, tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json"):
        async with run_engine([Policy(name="p", model=str(tmp_path))]):
            pass
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=str(tmp_path)):
        async with run_engine([Policy(name="p", model=str(tmp_path))]):
            pass


async def test_a_model_without_chat_template_is_named(run_engine, build_model, tmp_path):
    path = build_model(tmp_path)
    (Path(path) / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="chat template"):
        async with run_engine([Policy(name="p", model=path)]):
            pass


async def test_more_context_than_the_model_has_is_refused(run_engine, model_path):
    with pytest.raises(ConfigError, match="max_model_len"):
        async with run_engine([Policy(name="p", model=model_path)], max_model_len=100_000):
            pass


async def test_an_engine_that_did_not_start_can_be_stopped(model_path):
    engine = TorchEngine(TorchOptions(device="cpu"), None)
    await engine.stop()
    with pytest.raises(ConfigError, match="no policy"):
        engine.backend("p")
    with pytest.raises(EngineError, match="make a new one"):
        await engine.start([Policy(name="p", model=model_path)])


async def test_serving_only_does_not_train(run_engine, model_path, sampled, make_batch):
    async with run_engine([Policy(name="p", model=model_path, trainable=True)]) as engine:
        with pytest.raises(ConfigError, match="serve"):
            await engine.update(make_batch([sampled([1], [2], [-1.0])]))


async def test_saved_weights_serve_alike(
    run_engine, client, model_path, sampled, make_batch, recompute, tmp_path
):
    policy = Policy(name="p", model=model_path, trainable=True)
    async with run_engine([policy], SETUP) as engine:
        await engine.update(make_batch([sampled([1], [2, 3], [0.0, 0.0])]))
        await engine.save("p", str(tmp_path), resumable=False)
        mark = await engine.fingerprint("p")
        live = await client(engine, "p").ask(seed=1, max_tokens=12)
    async with run_engine([Policy(name="p", model=str(tmp_path))]) as engine:
        assert await engine.fingerprint("p") == mark
        served = await client(engine, "p").ask(seed=1, max_tokens=12)
    assert served.answers == live.answers
    expected = recompute(str(tmp_path), served.prompt, served.answers[0].tokens)
    assert served.answers[0].logprobs == pytest.approx(expected, abs=2e-5)
    assert not (tmp_path / "training_state.pt").exists()


async def test_a_frozen_policy_can_be_saved_but_not_replaced(run_engine, model_path, tmp_path):
    async with run_engine([Policy(name="f", model=model_path)]) as engine:
        await engine.save("f", str(tmp_path))
        with pytest.raises(ConfigError, match="frozen"):
            await engine.load("f", str(tmp_path), version=1)
        mark = await engine.fingerprint("f")
    async with run_engine([Policy(name="f", model=str(tmp_path))]) as engine:
        assert await engine.fingerprint("f") == mark


async def test_evaluation_takes_over_saved_weights(
    run_engine, model_path, sampled, make_batch, tmp_path
):
    policy = Policy(name="p", model=model_path, trainable=True)
    async with run_engine([policy], SETUP) as engine:
        await engine.update(make_batch([sampled([1], [2, 3], [0.0, 0.0])]))
        await engine.save("p", str(tmp_path))
        mark = await engine.fingerprint("p")
    async with run_engine([policy]) as engine:
        assert await engine.fingerprint("p") != mark
        await engine.load("p", str(tmp_path), version=1)
        assert await engine.fingerprint("p") == mark


@pytest.mark.parametrize(
    "shape",
    [
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
        {"tie_word_embeddings": False, "num_key_value_heads": 2},
        {"num_attention_heads": 4, "head_dim": 16},
    ],
)
async def test_other_shapes_of_model_are_exact_too(
    run_engine, client, build_model, recompute, sampled, make_batch, tmp_path, shape
):
    path = build_model(tmp_path, **shape)
    async with run_engine([Policy(name="p", model=path, trainable=True)], SETUP) as engine:
        replies = await client(engine, "p").ask_many(["a long question", "b"], n=2, max_tokens=20)
        samples = []
        for group, reply in enumerate(replies):
            for answer in reply.answers:
                expected = recompute(path, reply.prompt, answer.tokens)
                assert answer.logprobs == pytest.approx(expected, abs=2e-5)
                samples.append(sampled(reply.prompt, answer.tokens, answer.logprobs, group=group))
        metrics = (await engine.update(make_batch(samples))).metrics
    assert metrics["logprob_error_max"] < 2e-5


async def test_attention_of_another_kind_is_refused(run_engine, build_model, tmp_path):
    path = build_model(tmp_path)
    config = Path(path) / "config.json"
    changed = json.loads(config.read_text())
    changed["layer_types"] = ["full_attention", "chunked_attention"]
    config.write_text(json.dumps(changed))
    with pytest.raises(ConfigError, match="chunked_attention"):
        async with run_engine([Policy(name="p", model=path)]):
            pass


async def test_answers_of_two_policies_interleave(
    run_engine, client, model_path, build_model, tmp_path
):
    import asyncio

    other = build_model(tmp_path, seed=5, layers=1)
    policies = [Policy(name="p", model=model_path), Policy(name="o", model=other)]
    async with run_engine(policies) as engine:
        alone = {n: (await client(engine, n).ask(seed=1, max_tokens=20)).answers for n in "po"}
        names = ["p", "o"] * 4
        replies = await asyncio.gather(
            *(client(engine, name).ask(seed=1, max_tokens=20) for name in names)
        )
    for name, reply in zip(names, replies, strict=True):
        assert reply.answers[0].tokens == alone[name][0].tokens


async def test_the_vocabulary_is_that_of_the_embedding(run_engine, model_path):
    """A3: the gateway refuses ids that the weights have no row for."""
    config = json.loads((Path(model_path) / "config.json").read_text())
    async with run_engine([Policy(name="p", model=model_path)]) as engine:
        assert engine.vocab_size("p") == config["vocab_size"]


async def test_given_tokens_are_scored_by_the_weights_that_serve(
    run_engine, client, model_path, sampled, make_batch, recompute, tmp_path
):
    policy = Policy(name="p", model=model_path, trainable=True)
    async with run_engine([policy], SETUP) as engine:
        backend = engine.backend("p")
        for version in (0, 1):
            reply = await client(engine, "p").ask(seed=1, max_tokens=8, temperature=0.7)
            (answer,) = reply.answers
            scored = await backend.score(reply.prompt, answer.tokens, temperature=0.7)
            assert scored.version == version
            assert scored.logprobs == pytest.approx(answer.logprobs, abs=1e-4)
            if not version:
                given = recompute(model_path, [1], [2, 3], temperature=2.0)
                scored = await backend.score([1], [2, 3], temperature=2.0)
                assert scored.logprobs == pytest.approx(given, abs=1e-4)
                await engine.update(make_batch([sampled([1], [2, 3], [0.0, 0.0])]))
        with pytest.raises(ValueError, match="context holds 512"):
            await backend.score([1] * 500, [2] * 13, temperature=1.0)
        assert len((await backend.score([1] * 500, [2] * 12, temperature=1.0)).logprobs) == 12
    with pytest.raises(EngineError):
        await backend.score([1], [2], temperature=1.0)
