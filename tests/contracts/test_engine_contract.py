"""Each rule of EngineContract fails on an engine that breaks it; the template's keeps them all."""

import asyncio
import inspect
import json
import math
import re
import shutil
import sys
from array import array
from itertools import count, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from agl_testing.engine_contract import EngineContract
from agl_testing.toy_model import ToyModel, encode, toy_logprobs

from agl_core.interfaces import AlgorithmSetup, Engine, Scored
from agl_core.types import Policy, TokenNumbers
from tools.new import render

with TemporaryDirectory() as _folder:
    render("engine", "toy", Path(_folder))
    sys.path.insert(0, f"{_folder}/trainers")
    try:
        from agl_toy._backend import ToyBackend
        from agl_toy._engine import ToyEngine
        from agl_toy._loss import PolicyGradient, PolicyGradientOptions
        from agl_toy._options import ToyOptions
    finally:
        sys.path.remove(f"{_folder}/trainers")

MARK = encode("[")[0]


class Suite(EngineContract):
    patience_s = 0.2
    tolerance = 1e-9


class Base(ToyEngine):
    """Serves by `backend_class`, from the model that it trains."""

    backend_class = ToyBackend
    model_class = ToyModel

    async def start(self, policies):
        await super().start(policies)
        for name, model in self._models.items():
            self._models[name] = made = self.model_class(model.logits, model.momentum)
            self._backends[name] = self.backend_class(made, max_tokens=64)

    async def configure(self, setup):
        self._setup, self._loss = setup, setup.loss_factory()


def serving(**methods):
    """An engine whose backend has other methods."""
    return type("Broken", (Base,), {"backend_class": type("Backend", (ToyBackend,), methods)})


def broken(**members):
    return type("Broken", (Base,), members)


async def _backwards(self, token_ids):
    return "".join(chr(32 + token) for token in token_ids if token < 95)[::-1]


async def _loses_the_last(self, body, *, headers, timeout_s):
    request = json.loads(body)
    if request.get("stream"):
        request["max_tokens"] -= 1
    return await ToyBackend.chat(
        self, json.dumps(request).encode(), headers=headers, timeout_s=timeout_s
    )


class Raw(ToyModel):
    """Gives log-probabilities before temperature."""

    def sample(self, temperature, random):
        token, _ = super().sample(temperature, random)
        return token, self.logprobs(1.0)[token]


class KeepsItsVersion(Base):
    async def update(self, batch):
        update = await super().update(batch)
        self._versions[batch.policy] = 0
        return update


class TrainsNothing(Base):
    async def update(self, batch):
        model = self._models[batch.policy]
        before = list(model.logits)
        update = await super().update(batch)
        model.logits = before
        return update


class ServesTheOld(Base):
    """Trains weights that it never serves."""

    async def start(self, policies):
        await super().start(policies)
        for name, model in self._models.items():
            self._backends[name] = ToyBackend(ToyModel(list(model.logits)), max_tokens=64)


class ForgetsTheOptimizer(Base):
    async def save(self, policy, directory, *, resumable=True):
        await super().save(policy, directory, resumable=False)


class StartsAfresh(Base):
    """Keeps no optimizer state when it is configured again."""

    async def configure(self, setup):
        await super().configure(setup)
        for model in self._models.values():
            model.momentum = [0.0] * len(model.momentum)


class IgnoresTheSetup(Base):
    async def configure(self, setup):
        return


class ServesWhatWasThere(Base):
    """Loads weights that it does not serve."""

    async def load(self, policy, directory, *, version):
        self._models[policy] = ToyModel()
        await super().load(policy, directory, version=version)


class LoadsNothing(Base):
    async def load(self, policy, directory, *, version):
        self._versions[policy] = version


async def _export_all(source, target):
    shutil.copytree(source, target)


class OnlyServes(Engine):
    def __init__(self, *arguments):
        self._inner = ToyEngine(*arguments)

    async def start(self, policies):
        await self._inner.start(policies)

    async def stop(self):
        await self._inner.stop()

    def backend(self, policy):
        return self._inner.backend(policy)


class TrainsInSecret(OnlyServes):
    async def update(self, batch):
        return await self._inner.update(batch)


async def _goes_on(self, body, *, headers, timeout_s):
    """Continues to generate after its caller has gone."""
    answering = asyncio.create_task(
        ToyBackend.chat(self, body, headers=headers, timeout_s=timeout_s)
    )
    self.kept = [*getattr(self, "kept", []), answering]
    self.under_way += 1  # for ever: this model's answers are short
    return await asyncio.shield(answering)


class _NeverClosed:
    def __init__(self, reply):
        self.status, self.headers, self._reply = reply.status, reply.headers, reply
        self.kept = reply.body()

    def body(self):
        return self.kept

    async def close(self):
        """Leaves the generator as it is."""


async def _never_closes(self, body, *, headers, timeout_s):
    reply = _NeverClosed(await ToyBackend.chat(self, body, headers=headers, timeout_s=timeout_s))
    self.kept = [*getattr(self, "kept", []), reply]
    return reply


async def _has_time(self, body, *, headers, timeout_s):
    return await ToyBackend.chat(self, body, headers=headers, timeout_s=100.0)


async def _counts_one_more(self, body):
    counted = await ToyBackend.count_tokens(self, body)
    return type(counted)(counted.tokens + 1, counted.limit)


async def _ten(self):
    return 10


async def _other_limit(self):
    return 1000


def _shows(self, request):
    problem, prompt = ToyBackend._prompt(self, request)
    return problem, [*encode(str(request.get("tools") or "")), *prompt]


def _sees(self, request):
    for message in request["messages"]:
        message["content"] = str(message["content"])
    return ToyBackend._prompt(self, request)


def _wrong_renderer(model):
    return lambda messages, tools: encode("something else")


class TrainsAtOnce(Base):
    overlaps = True

    async def train(self, batch):
        return await Base.update(self, batch)

    async def publish(self, policy):
        """The new weights serve already."""


class Overlaps(Base):
    overlaps = True
    ahead = None

    async def update(self, batch):
        update = await self.train(batch)
        await self.publish(batch.policy)
        return update

    async def train(self, batch):
        served = self._models[batch.policy]
        self.ahead = self._models[batch.policy] = ToyModel(served.logits, served.momentum)
        update = await super().update(batch)
        self._models[batch.policy] = served
        return update

    async def publish(self, policy):
        self._models[policy].logits = self.ahead.logits
        self._models[policy].momentum = self.ahead.momentum


async def _no_prompt(self, body, *, headers, timeout_s):
    request = json.loads(body)
    request["return_token_ids"] = False
    return await ToyBackend.chat(
        self, json.dumps(request).encode(), headers=headers, timeout_s=timeout_s
    )


def _with_ids(ids):
    """Replaces the response id of each event by the next of `ids`."""

    async def chat(self, body, *, headers, timeout_s):
        reply = await ToyBackend.chat(self, body, headers=headers, timeout_s=timeout_s)
        chunks = reply.body()

        async def changed():
            async for chunk in chunks:
                yield re.sub(rb"chatcmpl-\w+", b"chatcmpl-%d" % next(ids), chunk)

        reply._chunks = changed()
        return reply

    return chat


def _every_choice_from_the_seed(self, request, index, ends_at):
    return ToyBackend._tokens(self, request, 0, ends_at)


def _ignores_the_seed(self, request, index, ends_at):
    return ToyBackend._tokens(self, {**request, "seed": None}, index, ends_at)


def _has_one_seed(self, request, index, ends_at):
    return ToyBackend._tokens(self, {**request, "seed": 1}, index, ends_at)


def with_numbers(*, drop=0, **changed):
    """An engine whose updates have numbers of each token, some of them wrong."""

    class Broken(Base):
        async def update(self, batch):
            model = self._models[batch.policy]
            before = [model.logprobs(1.0)[token] for token in batch.targets]
            update = await super().update(batch)
            after = [model.logprobs(1.0)[token] for token in batch.targets]
            given = {"before": before, "after": after, "entropies": [math.nan] * len(before)}
            given |= {name: change(given[name]) for name, change in changed.items()}
            packed = {name: array("d", values[drop:]) for name, values in given.items()}
            return msgspec.structs.replace(update, tokens=TokenNumbers(**packed))

    return Broken


def scoring(*, version=0, fits=True, change=list):
    """An engine that scores given ids, in some way wrong."""

    class Scores(Base):
        async def start(self, policies):
            await super().start(policies)
            for backend in self._backends.values():
                backend.versions = self._versions

    async def score(self, prompt, answer, *, temperature):
        if fits and len(prompt) + len(answer) > 1024:
            raise ValueError(f"{len(answer)} ids do not fit")
        logprobs = [self._model.logprobs(temperature)[token] for token in answer]
        return Scored(change(logprobs), self.versions["policy"] + version)

    Scores.backend_class = type("Backend", (ToyBackend,), {"score": score})
    return Scores


_CASES = [
    ("the_gateway_takes_its_tokens_as_exact", serving(chat=_no_prompt)),
    ("ids_decode_to_the_returned_text", serving(detokenize=_backwards)),
    ("a_stream_has_the_tokens_of_the_whole_answer", serving(chat=_loses_the_last)),
    ("a_stream_has_one_response_id", serving(chat=_with_ids(count()))),
    ("a_stream_has_one_response_id", serving(chat=_with_ids(repeat(1)))),
    (
        "the_choices_of_a_seeded_request_differ",
        serving(_tokens=_every_choice_from_the_seed),
    ),
    ("equal_requests_with_a_seed_get_equal_answers", serving(_tokens=_ignores_the_seed)),
    ("equal_requests_with_a_seed_get_equal_answers", serving(_tokens=_has_one_seed)),
    ("log_probabilities_match_a_recomputation", broken(model_class=Raw)),
    *(
        ("given_ids_are_scored_as_a_recomputation_scores_them", wrong)
        for wrong in (
            scoring(version=1),
            scoring(fits=False),
            scoring(change=lambda values: values[1:]),
            scoring(change=lambda values: [value - 0.1 for value in values]),
        )
    ),
    ("each_update_serves_a_new_version", KeepsItsVersion),
    ("each_update_serves_a_new_version", TrainsNothing),
    ("each_update_serves_a_new_version", ServesTheOld),
    ("numbers_of_tokens_fit_the_batch", with_numbers(drop=1)),
    ("numbers_of_tokens_fit_the_batch", with_numbers(before=lambda values: values[::-1])),
    ("training_resumes_from_what_was_saved", ForgetsTheOptimizer),
    ("another_setup_keeps_weights_and_optimizer_state", StartsAfresh),
    ("another_setup_keeps_weights_and_optimizer_state", IgnoresTheSetup),
    ("training_resumes_from_what_was_saved", LoadsNothing),
    ("what_load_restores_is_served", ServesWhatWasThere),
    ("what_load_restores_is_served", LoadsNothing),
    ("an_export_serves_without_training_state", broken(export=staticmethod(_export_all))),
    ("an_engine_that_only_serves_refuses_the_rest", TrainsInSecret),
    ("a_cancelled_call_stops_generating", serving(chat=_goes_on)),
    ("a_stream_that_is_closed_stops_generating", serving(chat=_never_closes)),
    ("a_call_that_runs_out_of_time_fails_and_stops_generating", serving(chat=_has_time)),
    ("token_ids_are_of_the_declared_vocabulary", broken(vocab_size=lambda self, policy: 40)),
    ("a_prompt_is_as_long_as_counted", serving(count_tokens=_counts_one_more)),
    ("a_prompt_is_as_long_as_counted", serving(context_length=_other_limit)),
    ("a_prompt_beyond_the_declared_context_is_refused", serving(context_length=_ten)),
    ("tools_are_shown_as_declared", broken(shows_tools=lambda self, policy: True)),
    ("tools_are_shown_as_declared", serving(_prompt=_shows)),
    (
        "tools_are_shown_as_declared",
        type("Undeclared", (serving(_prompt=_shows),), {"shows_tools": Engine.shows_tools}),
    ),
    ("images_are_marked_as_declared", broken(image_token=lambda self, policy: MARK)),
    ("images_are_marked_as_declared", serving(_prompt=_sees)),
    (
        "conversations_are_rendered_as_they_are_prompted",
        broken(renderer=staticmethod(_wrong_renderer)),
    ),
    ("the_old_version_serves_while_the_new_one_is_trained", TrainsAtOnce),
    (
        "the_old_version_serves_while_the_new_one_is_trained",
        type("Undeclared", (Overlaps,), {"overlaps": Engine.overlaps}),
    ),
]
_MORE = {
    "log_probabilities_match_a_recomputation": {"temperature": 0.7},
    "given_ids_are_scored_as_a_recomputation_scores_them": {"temperature": 0.7},
    "a_call_that_runs_out_of_time_fails_and_stops_generating": {"stream": False},
}


def make_loss():
    return PolicyGradient(PolicyGradientOptions())


async def keeps(rule, engine_class, directory):
    """Run one rule on a started engine."""
    ToyModel([0.5 * (index % 3) for index in range(96)]).save(directory / "model", resumable=False)
    policy = Policy(name="policy", model=str(directory / "model"), trainable=True)
    setup = AlgorithmSetup(name="grpo", loss_factory=make_loss, lr=0.5)
    engine = engine_class(ToyOptions(), setup)
    await engine.start([policy])
    backend = engine.backend("policy")

    async def under_way():
        return backend.under_way

    known = {
        "engine": engine,
        "policy": policy,
        "algorithm_setup": setup,
        "recompute": toy_logprobs,
        "under_way": under_way,
        "decode": backend.detokenize,
        "tmp_path": directory,
        **_MORE.get(rule, {}),
    }
    test = getattr(Suite(), f"test_{rule}")
    try:
        await test(**{name: known[name] for name in inspect.signature(test).parameters})
    finally:
        for kept in getattr(backend, "kept", []):
            if isinstance(kept, _NeverClosed):
                await kept.kept.aclose()
            else:
                kept.cancel()
        await engine.stop()


@pytest.mark.parametrize(("rule", "engine_class"), _CASES)
async def test_a_broken_engine_is_caught(rule, engine_class, tmp_path):
    await keeps(rule, OnlyServes if "only_serves" in rule else Base, tmp_path / "good")
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await keeps(rule, engine_class, tmp_path / "broken")


async def test_an_engine_that_scores_given_ids_keeps_the_rule(tmp_path):
    await keeps("given_ids_are_scored_as_a_recomputation_scores_them", scoring(), tmp_path)


def test_every_rule_has_its_broken_engine():
    rules = {name[5:] for name in vars(EngineContract) if name.startswith("test_")}
    assert rules == {rule for rule, _ in _CASES}


async def test_an_engine_with_right_numbers_of_tokens_keeps_the_rule(tmp_path):
    await keeps("numbers_of_tokens_fit_the_batch", with_numbers(), tmp_path)


async def test_an_engine_that_overlaps_keeps_the_rules(tmp_path):
    for rule in {rule for rule, _ in _CASES} - {"an_engine_that_only_serves_refuses_the_rest"}:
        await keeps(rule, Overlaps, tmp_path / rule)


async def test_one_that_trains_in_secret_is_not_let_off_by_a_skip(tmp_path):
    with pytest.raises(pytest.skip.Exception):
        await keeps("each_update_serves_a_new_version", OnlyServes, tmp_path)
