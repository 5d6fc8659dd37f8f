"""Updates: what is learned, what is left alone, and what a resumed run repeats."""

from __future__ import annotations

import asyncio
import dataclasses
import math

import pytest
import torch
from agl_torch.losses.cross_entropy import CrossEntropy
from agl_torch.losses.policy_gradient import ClipOptions, PolicyGradient

from agl_core.errors import ConfigError, TrainingError
from agl_core.interfaces import AlgorithmSetup
from agl_core.types import Policy

LETTERS = range(64, 90)  # the tokens of "a" and the letters after it


def setup(loss=None, **fields):
    """A policy gradient at a rate that shows, unless another loss's factory is given."""
    factory = loss or (lambda: PolicyGradient(ClipOptions()))
    return AlgorithmSetup(**{"name": "grpo", "loss_factory": factory, "lr": 1e-2, **fields})


@pytest.fixture
def policy(model_path):
    return Policy(name="p", model=model_path, trainable=True)


async def collect(asker, sampled, *, prompts=("a", "b"), n=8, reward, **fields):
    """Sample groups and centre their rewards."""
    replies = await asker.ask_many(prompts, n=n, **{"max_tokens": 3, **fields})
    samples, rewards = [], []
    for group, reply in enumerate(replies):
        scores = [reward(answer) for answer in reply.answers]
        rewards += scores
        mean = sum(scores) / len(scores)
        samples += [
            sampled(
                reply.prompt, answer.tokens, answer.logprobs, advantage=score - mean, group=group,
                temperature=fields.get("temperature", 1.0),
            )
            for answer, score in zip(reply.answers, scores, strict=True)
        ]  # fmt: skip
    return samples, sum(rewards) / len(rewards)


def letters(answer):
    return sum(token in LETTERS for token in answer.tokens) / len(answer.tokens)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
async def test_a_bandit_is_learned(run_engine, client, policy, sampled, make_batch, ratio):
    chosen = setup(
        lambda: PolicyGradient(ClipOptions(ratio=ratio)), lr=3e-3, epochs=2, minibatches=2
    )
    async with run_engine([policy], chosen) as engine:
        asker, rewards = client(engine, "p"), []
        for step in range(25):
            samples, reward = await collect(asker, sampled, reward=letters, seed=step)
            rewards.append(reward)
            update = await engine.update(make_batch(samples, step=step))
            assert all(math.isfinite(value) for value in update.metrics.values())
        assert rewards[0] < 0.3
        assert sum(rewards[-3:]) / 3 > 0.8


async def test_on_policy_the_recomputed_logprobs_are_the_engines(
    run_engine, client, policy, sampled, make_batch
):
    async with run_engine([policy], setup()) as engine:
        asker = client(engine, "p")
        for temperature, stream in [(1.0, False), (0.6, True), (1.5, False), (0, False)]:
            samples, _ = await collect(
                asker, sampled, reward=letters, temperature=temperature, stream=stream, max_tokens=9
            )
            metrics = (await engine.update(make_batch(samples))).metrics
            assert metrics["logprob_error_max"] < 2e-5
            assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-4)


async def test_a_wrong_temperature_shows_in_the_metrics(
    run_engine, client, policy, sampled, make_batch
):
    async with run_engine([policy], setup(lr=0)) as engine:
        samples, _ = await collect(client(engine, "p"), sampled, reward=letters, temperature=0.5)
        wrong = [dataclasses.replace(sample, temperature=1.0) for sample in samples]
        assert (await engine.update(make_batch(wrong))).metrics["logprob_error_max"] > 0.1


async def test_learning_rate_zero_leaves_every_bit(run_engine, policy, sampled, make_batch):
    async with run_engine([policy], setup(lr=0, weight_decay=0.1, epochs=2)) as engine:
        before = await engine.fingerprint("p")
        update = await engine.update(make_batch([sampled([1], [2, 3], [-1.0, -1.0])]))
        assert await engine.fingerprint("p") == before
        assert update.version == 1
        assert update.metrics["grad_norm"] > 0


async def test_masked_tokens_leave_numerator_and_denominator(
    run_engine, policy, sampled, make_batch
):
    whole = sampled([1], [5, 6, 7, 2], [0.0] * 4)
    cut = sampled([1], [9] * 12, [0.0] * 12, weight=0.0)
    chosen = setup(CrossEntropy, lr=0)
    async with run_engine([policy], chosen) as engine:
        alone = (await engine.update(make_batch([whole]))).metrics
        both = (await engine.update(make_batch([whole, cut]))).metrics
        assert both["loss"] == pytest.approx(alone["loss"], rel=1e-5)
        assert both["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-5)


async def test_a_fully_masked_batch_changes_nothing_and_says_so(
    run_engine, policy, sampled, make_batch
):
    masked = sampled([1], [9] * 12, [0.0] * 12, weight=0.0)
    async with run_engine([policy], setup(weight_decay=0.1)) as engine:
        before = await engine.fingerprint("p")
        metrics = (await engine.update(make_batch([masked]))).metrics
        assert await engine.fingerprint("p") == before
        assert metrics["skipped_minibatches"] == 1
        assert metrics["optimizer_steps"] == 0
        assert not any(math.isnan(value) for value in metrics.values())


async def test_the_end_token_is_learned(run_engine, client, policy, sampled, make_batch):
    chosen = setup(CrossEntropy, lr=3e-3)
    async with run_engine([policy], chosen) as engine:
        asker = client(engine, "p")
        prompt = (await asker.ask("go", max_tokens=1)).prompt
        for step in range(40):
            batch = make_batch([sampled(prompt, [64, 65, 258], [0.0] * 3)], step=step)
            await engine.update(batch)
        answer = (await asker.ask("go", temperature=0, max_tokens=9)).answers[0]
    assert answer.tokens == [64, 65, 258]
    assert (answer.content, answer.finish) == ("ab", "stop")


async def test_the_divergence_draws_back_to_the_reference(
    run_engine, client, policy, sampled, make_batch
):
    async def drift(kl_weight):
        async with run_engine([policy], setup(lr=2e-3, kl_weight=kl_weight)) as engine:
            asker = client(engine, "p")
            for step in range(12):
                samples, _ = await collect(asker, sampled, reward=letters, seed=step)
                metrics = (await engine.update(make_batch(samples, step=step))).metrics
            return metrics["kl"]

    assert await drift(1.0) < 0.5 * await drift(1e-9)


async def test_one_step_on_the_divergence_lowers_it(
    run_engine, client, policy, sampled, make_batch
):
    chosen = setup(lr=1e-3, kl_weight=1.0)
    async with run_engine([policy], chosen) as engine:
        asker = client(engine, "p")
        samples, _ = await collect(asker, sampled, reward=letters)
        for _ in range(6):
            pushed = [dataclasses.replace(sample, advantage=8.0) for sample in samples]
            await engine.update(make_batch(pushed))
        still = make_batch([dataclasses.replace(sample, advantage=0.0) for sample in samples])
        values = [(await engine.update(still)).metrics["kl"] for _ in range(4)]
    assert values[0] > values[1] > values[2]


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}])
async def test_a_resumed_run_ends_with_the_same_bits(
    run_engine, client, policy, sampled, make_batch, tmp_path, lora
):
    chosen = setup(lr=1e-2, weight_decay=0.01, kl_weight=0.01, minibatches=2, epochs=2, seed=7)
    options = {"lora": lora, "deterministic": True}

    async def steps(engine, numbers):
        asker = client(engine, "p")
        for step in numbers:
            samples, _ = await collect(asker, sampled, reward=letters, seed=step)
            await engine.update(make_batch(samples, step=step))

    async with run_engine([policy], chosen, **options) as engine:
        await steps(engine, range(2))
        await engine.save("p", str(tmp_path / "two"))
        await steps(engine, range(2, 4))
        straight = await engine.fingerprint("p")
    async with run_engine([policy], chosen, **options) as engine:
        await engine.load("p", str(tmp_path / "two"), version=2)
        reply = await client(engine, "p").ask(max_tokens=1)
        assert reply.document["system_fingerprint"] == "p@2"
        await steps(engine, range(2, 4))
        assert await engine.fingerprint("p") == straight
    async with run_engine([policy], chosen, **options) as engine:
        await steps(engine, range(4))
        assert await engine.fingerprint("p") == straight


async def test_weights_alone_resume_with_a_fresh_optimizer(
    run_engine, policy, sampled, make_batch, tmp_path
):
    batch = make_batch([sampled([1], [2, 3], [-1.0, -1.0])])
    async with run_engine([policy], setup()) as engine:
        await engine.update(batch)
        await engine.save("p", str(tmp_path), resumable=False)
        saved = await engine.fingerprint("p")
        await engine.update(batch)
        await engine.load("p", str(tmp_path), version=1)
        assert await engine.fingerprint("p") == saved


async def test_a_broken_optimizer_state_is_named(run_engine, policy, tmp_path):
    async with run_engine([policy], setup()) as engine:
        await engine.save("p", str(tmp_path))
        (tmp_path / "training_state.pt").write_bytes(b"not a state")
        with pytest.raises(TrainingError, match=r"training_state\.pt"):
            await engine.load("p", str(tmp_path), version=1)


async def test_new_weights_answer_the_next_request_and_no_request_mixes(
    run_engine, client, policy, sampled, make_batch, recompute, model_path, tmp_path, wait_until,
    held,
):  # fmt: skip
    async with run_engine([policy], setup(lr=3e-2), max_batch_size=4) as engine:
        asker = client(engine, "p")
        batch = make_batch([sampled([1], [2, 3], [-1.0, -1.0])])
        early = [asyncio.create_task(asker.ask("hello", n=6, max_tokens=60)) for _ in range(2)]
        # Waiting does not count: what has not begun may well be answered by the new weights.
        await wait_until(lambda: engine._worker.lanes["p"]._rows)
        updating = asyncio.create_task(engine.update(batch))
        await asyncio.sleep(0)
        held.set()
        late = [asyncio.create_task(asker.ask("hello", n=2, max_tokens=60)) for _ in range(2)]
        replies = await asyncio.gather(*early, *late)
        assert (await updating).version == 1
        await engine.save("p", str(tmp_path), resumable=False)
    versions = [reply.document["system_fingerprint"] for reply in replies]
    assert versions[0] == "p@0"
    assert versions[2:] == ["p@1", "p@1"]
    weights = {"p@0": model_path, "p@1": str(tmp_path)}
    for reply, version in zip(replies, versions, strict=True):
        for answer in reply.answers:
            expected = recompute(weights[version], reply.prompt, answer.tokens)
            assert answer.logprobs == pytest.approx(expected, abs=5e-5)


async def test_a_frozen_policy_stays_as_it_is(
    run_engine, client, policy, model_path, sampled, make_batch
):
    frozen = Policy(name="f", model=model_path)
    async with run_engine([policy, frozen], setup()) as engine:
        asker = client(engine, "f")
        before = await engine.fingerprint("f")
        said = (await asker.ask(seed=1, max_tokens=9)).answers
        assert before == await engine.fingerprint("p")
        await engine.update(make_batch([sampled([1], [2, 3], [-1.0, -1.0])]))
        assert await engine.fingerprint("f") == before != await engine.fingerprint("p")
        assert (await asker.ask(seed=1, max_tokens=9)).answers == said
        with pytest.raises(ConfigError, match="frozen"):
            await engine.update(make_batch([sampled([1], [2], [-1.0])], policy="f"))


async def test_every_update_makes_a_version(run_engine, policy, sampled, make_batch):
    async with run_engine([policy], setup()) as engine:
        first = await engine.update(make_batch([sampled([1], [2], [-1.0], version=0)]))
        second = await engine.update(make_batch([sampled([1], [2], [-1.0], version=0)]))
        assert (first.version, second.version) == (1, 2)


@pytest.mark.parametrize(
    "broken", [{"advantage": math.nan}, {"logprobs": [-math.inf]}, {"weight": math.inf}]
)
async def test_numbers_that_are_not_finite_are_refused(
    run_engine, policy, sampled, make_batch, broken
):
    async with run_engine([policy], setup()) as engine:
        before = await engine.fingerprint("p")
        sample = dataclasses.replace(sampled([1], [2], [-1.0]), **broken)
        with pytest.raises(TrainingError, match="call-0"):
            await engine.update(make_batch([sample]))
        assert await engine.fingerprint("p") == before


async def test_a_gradient_that_is_not_finite_takes_no_step(run_engine, policy, sampled, make_batch):
    class Broken:
        def __call__(self, terms):
            from agl_torch.losses import LossOutput

            return LossOutput(losses=terms.logprobs * torch.inf)

    chosen = setup(Broken)
    async with run_engine([policy], chosen) as engine:
        before = await engine.fingerprint("p")
        with pytest.raises(TrainingError, match="not finite"):
            await engine.update(make_batch([sampled([1], [2], [-1.0])]))
        assert await engine.fingerprint("p") == before


async def test_micro_packs_do_not_change_the_gradient(run_engine, policy, sampled, make_batch):
    samples = [sampled([1, g], [2, g, 3], [-1.0] * 3, advantage=g - 5.0, group=g) for g in range(9)]
    norms = []
    for pack_tokens in (1, 12, 4096):
        async with run_engine([policy], setup(lr=0), pack_tokens=pack_tokens) as engine:
            norms.append((await engine.update(make_batch(samples))).metrics["grad_norm"])
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-5)
