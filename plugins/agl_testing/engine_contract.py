"""The contract of engines: exact tokens, seeds, versions, resumption, abort, declared abilities.

::

    class TestMine(EngineContract):
        @pytest.fixture
        async def engine(self, policy):
            engine = MyEngine(MyOptions(), setup)
            await engine.start([policy])
            yield engine
            await engine.stop()

        @pytest.fixture
        def policy(self): return Policy(name="p", model=MODEL, trainable=True)

        @pytest.fixture
        def recompute(self): return my_recompute       # without the engine's code

        @pytest.fixture
        def under_way(self, engine): return lambda: engine.answers_under_way()

The fixtures may have any scope: no test depends on the order of the others, so an engine that
starts slowly can be started once per module.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import msgspec
import pytest

from agl_core.errors import ConfigError, EngineError
from agl_core.gateway import Route
from agl_core.gateway.probe import probe
from agl_core.interfaces import AlgorithmSetup, Backend, Engine
from agl_core.types import Batch, Policy
from agl_testing._batch import batch_of
from agl_testing._chat import TEXT, ChatAnswer, ask, request
from agl_testing._guard import ContractSuite

__all__ = ["EngineContract"]

Recompute = Callable[[str, Sequence[int], Sequence[int], float], Sequence[float]]
"""Maps a directory of weights, prompt ids, answer ids and a temperature to the log-probability of
each id of the answer.
"""
Decode = Callable[[Sequence[int]], Awaitable[str | None]]
UnderWay = Callable[[], Awaitable[int]]

_CONTROL: Final = re.compile(r"(?:\s|\ufffd|<[^<>]{1,60}>|\[/?[A-Z_]{1,30}\])*")
"""What decoded ids may contain besides the answer's text: control tokens and white space."""
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
    },
}
_PIXEL: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGA"
    "hKmMIQAAAABJRU5ErkJggg=="
)
_TRIES: Final = 50
"""Most long answers to request until one is observed while it is generated."""
_LONG: Final[dict[str, Any]] = {"max_tokens": 256, "n": 32, "temperature": 2.0}
"""Fields of a request for an answer that is long enough to be aborted."""
_SEEDED: Final[dict[str, Any]] = {"seed": 7, "n": 8, "temperature": 2.0}
"""Fields of a request whose choices differ by their random numbers only."""


class EngineContract(ContractSuite):
    """Contract suite of engines: supply `engine`, `policy`, `recompute` and `under_way`."""

    logprobs: ClassVar[Literal["processed", "raw"]] = "processed"
    """Whether log-probabilities are those after temperature."""
    tolerance: ClassVar[float] = 1e-3
    """Largest difference between a log-probability and its recomputation, in nats."""
    honours_seeds: ClassVar[bool] = True
    """Whether requests that are equal, including a ``seed``, get equal answers."""
    patience_s: ClassVar[float] = 60.0
    """Seconds that an aborted answer may take to end before the test fails."""

    @pytest.fixture
    def engine(self) -> Engine:
        """Return a started engine that serves `policy`, with an algorithm if it trains."""
        raise NotImplementedError("Supply the fixture engine")

    @pytest.fixture
    def policy(self) -> Policy:
        """Return the policy to request and to train."""
        raise NotImplementedError("Supply the fixture policy")

    @pytest.fixture
    def algorithm_setup(self) -> AlgorithmSetup | None:
        """Return what the engine was made with; only needed if it defines `configure`."""
        return None

    @pytest.fixture
    def recompute(self) -> Recompute:
        """Return a function for teacher-forced log-probabilities, without the engine's code.

        Its directory is one that the engine saved, or ``policy.model`` if the engine only serves.
        """
        raise NotImplementedError("Supply the fixture recompute")

    @pytest.fixture
    def under_way(self) -> UnderWay:
        """Return a function that counts the requests of `policy` being answered now."""
        raise NotImplementedError("Supply the fixture under_way")

    @pytest.fixture
    def decode(self, engine: Engine, policy: Policy) -> Decode:
        """Return a function from ids to text; override it if the backend cannot detokenize."""
        return engine.backend(policy.name).detokenize

    async def test_ids_decode_to_the_returned_text(
        self, engine: Engine, policy: Policy, decode: Decode
    ) -> None:
        for stream in (False, True):
            answer = await _ask(engine, policy, n=2, stream=stream)
            prompt = await decode(answer.prompt)
            assert prompt is not None, "Supply the fixture decode: the backend gives no text of ids"
            assert TEXT in prompt, f"The prompt's ids decode to {prompt!r}"
            for choice in answer.choices:
                assert choice.token_ids, "An answer has no token ids"
                decoded = (await decode(choice.token_ids) or "").rstrip("\ufffd")
                text = choice.text.strip().rstrip("\ufffd")
                rest = decoded.replace(text, "", 1)
                same = text in decoded and _CONTROL.fullmatch(rest)
                assert same, f"The ids of {choice.text!r} decode to {decoded!r}"

    async def test_the_gateway_takes_its_tokens_as_exact(
        self, engine: Engine, policy: Policy
    ) -> None:
        asked = msgspec.structs.replace(policy, trainable=False)  # the probe never refuses these
        found = await probe(Route(asked, engine.backend(policy.name)))
        assert found.token_ids, "An answer lacks token ids, log-probabilities or its usage"
        assert found.stream_token_ids, "A stream lacks token ids, log-probabilities or its usage"
        # The probe also reports "raw" if an answer shows no alternatives.
        assert found.logprobs in (self.logprobs, "raw")

    async def test_a_stream_has_the_tokens_of_the_whole_answer(
        self, engine: Engine, policy: Policy
    ) -> None:
        whole = await _ask(engine, policy, temperature=0)
        streamed = await _ask(engine, policy, temperature=0, stream=True)
        assert streamed.prompt == whole.prompt
        assert [c.token_ids for c in streamed.choices] == [c.token_ids for c in whole.choices]
        assert [c.text for c in streamed.choices] == [c.text for c in whole.choices]

    async def test_a_stream_has_one_response_id(self, engine: Engine, policy: Policy) -> None:
        first, second = [await _ask(engine, policy, n=2, stream=True) for _ in range(2)]
        for answer in (first, second):
            assert len(answer.ids) == 1, f"The events of one stream have ids {answer.ids}"
        assert first.ids != second.ids, f"Two answers have the id {first.ids}"

    async def test_the_choices_of_a_seeded_request_differ(
        self, engine: Engine, policy: Policy
    ) -> None:
        for stream in (False, True):
            sampled = _sampled(await _ask(engine, policy, **_SEEDED, stream=stream))
            assert len(set(sampled)) > 1, f"{len(sampled)} choices are {sampled[0]}"

    async def test_equal_requests_with_a_seed_get_equal_answers(
        self, engine: Engine, policy: Policy
    ) -> None:
        if not self.honours_seeds:
            pytest.skip("The engine does not honour seeds")
        first = _sampled(await _ask(engine, policy, **_SEEDED))
        for stream in (False, True):
            assert _sampled(await _ask(engine, policy, **_SEEDED, stream=stream)) == first
        other = {**_SEEDED, "seed": _SEEDED["seed"] + 1}
        assert _sampled(await _ask(engine, policy, **other)) != first, "the seed changes nothing"

    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    async def test_log_probabilities_match_a_recomputation(
        self,
        engine: Engine,
        policy: Policy,
        recompute: Recompute,
        tmp_path: Path,
        temperature: float,
    ) -> None:
        weights = await _weights(engine, policy, tmp_path)
        answer = await _ask(engine, policy, n=2, temperature=temperature)
        self._check(answer, recompute, weights, temperature)

    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    async def test_given_ids_are_scored_as_a_recomputation_scores_them(
        self,
        engine: Engine,
        policy: Policy,
        recompute: Recompute,
        tmp_path: Path,
        temperature: float,
    ) -> None:
        backend = engine.backend(policy.name)
        answer = await _ask(engine, policy)
        prompt, ids = answer.prompt, answer.choices[0].token_ids[::-1]  # not as they were sampled
        if await backend.score(prompt, ids, temperature=temperature) is None:
            return  # the backend scores nothing
        version = None
        if engine.trains:
            version = (await engine.update(await _batch(engine, policy, step=0))).version
        weights = await _weights(engine, policy, tmp_path)
        scored = await backend.score(prompt, ids, temperature=temperature)
        assert scored is not None, "A backend scores always or never"
        assert version in (None, scored.version), "The scores are of another version"
        expected = list(recompute(weights, prompt, ids, temperature))
        assert scored.logprobs == pytest.approx(expected, abs=self.tolerance)
        if (limit := await backend.context_length()) is not None:
            with pytest.raises(ValueError, match=r"\d"):
                await backend.score(prompt, ids[:1] * limit, temperature=temperature)

    async def test_each_update_serves_a_new_version(
        self, engine: Engine, policy: Policy, recompute: Recompute, tmp_path: Path
    ) -> None:
        _need_training(engine)
        before = await engine.fingerprint(policy.name)
        assert await engine.fingerprint(policy.name) == before
        first = await engine.update(await _batch(engine, policy, step=0))
        middle = await engine.fingerprint(policy.name)
        second = await engine.update(await _batch(engine, policy, step=1, version=first.version))
        assert (first.policy, second.policy) == (policy.name, policy.name)
        assert second.version == first.version + 1
        assert len({before, middle, await engine.fingerprint(policy.name)}) == 3
        weights = await _weights(engine, policy, tmp_path)
        self._check(await _ask(engine, policy), recompute, weights)

    async def test_numbers_of_tokens_fit_the_batch(self, engine: Engine, policy: Policy) -> None:
        _need_training(engine)
        batch = await _batch(engine, policy, step=0)
        if (numbers := (await engine.update(batch)).tokens) is None:
            return
        for name in ("before", "after", "entropies"):
            assert len(getattr(numbers, name)) == len(batch.targets), f"{name} has other tokens"
        known = [at for at, value in enumerate(numbers.before) if not math.isnan(value)]
        before, sampled = ([each[at] for at in known] for each in (numbers.before, batch.logprobs))
        near = max(self.tolerance, 1e-5)  # batches are of float32
        assert before == pytest.approx(sampled, abs=near), "before is of other tokens"

    async def test_training_resumes_from_what_was_saved(
        self, engine: Engine, policy: Policy, tmp_path: Path
    ) -> None:
        _need_training(engine)
        await engine.update(await _batch(engine, policy, step=0))
        saved, batch = str(tmp_path / "saved"), await _batch(engine, policy, step=1)
        await engine.save(policy.name, saved)
        mark = await engine.fingerprint(policy.name)
        version = (await engine.update(batch)).version
        without = await engine.fingerprint(policy.name)
        await engine.load(policy.name, saved, version=version - 1)
        assert await engine.fingerprint(policy.name) == mark, "load restores other weights"
        again = (await engine.update(batch)).version
        assert again == version, "load sets the version that it is given"
        after = await engine.fingerprint(policy.name)
        assert after == without, "training after load gives other weights than without it"

    async def test_another_setup_keeps_weights_and_optimizer_state(
        self, engine: Engine, policy: Policy, algorithm_setup: AlgorithmSetup | None, tmp_path: Path
    ) -> None:
        if type(engine).configure is Engine.configure:
            return
        setup = algorithm_setup
        assert setup is not None, "Supply the fixture algorithm_setup: what the engine got"
        await engine.update(await _batch(engine, policy, step=0))
        saved, batch = str(tmp_path / "saved"), await _batch(engine, policy, step=1)
        await engine.save(policy.name, saved)
        mark = await engine.fingerprint(policy.name)
        version = (await engine.update(batch)).version
        without = await engine.fingerprint(policy.name)
        assert without != mark
        await engine.load(policy.name, saved, version=version - 1)
        await engine.configure(replace(setup, lr=setup.lr / 2))
        assert await engine.fingerprint(policy.name) == mark, "configure changes the weights"
        await engine.configure(setup)
        await engine.update(batch)
        assert await engine.fingerprint(policy.name) == without, "optimizer state is lost"
        await engine.load(policy.name, saved, version=version - 1)
        await engine.configure(replace(setup, lr=0))
        await engine.update(batch)
        assert await engine.fingerprint(policy.name) == mark, "lr = 0 is not used"
        await engine.configure(setup)  # as other tests of a shared engine expect it

    async def test_what_load_restores_is_served(
        self, engine: Engine, policy: Policy, recompute: Recompute, tmp_path: Path
    ) -> None:
        _need_training(engine)
        weights = await _weights(engine, policy, tmp_path)
        await engine.save(policy.name, str(tmp_path / "saved"))
        update = await engine.update(await _batch(engine, policy, step=0))
        await engine.load(policy.name, str(tmp_path / "saved"), version=update.version - 1)
        self._check(await _ask(engine, policy), recompute, weights)

    async def test_an_export_serves_without_training_state(
        self, engine: Engine, policy: Policy, recompute: Recompute, tmp_path: Path
    ) -> None:
        _need_training(engine)
        await engine.update(await _batch(engine, policy, step=0))  # an export has to differ
        await engine.save(policy.name, str(tmp_path / "saved"))
        await engine.export(str(tmp_path / "saved"), str(tmp_path / "exported"))
        weights = await _weights(engine, policy, tmp_path)
        for directory in (str(tmp_path / "exported"), weights):
            assert not _training_state(directory)
            self._check(await _ask(engine, policy), recompute, directory)

    async def test_an_engine_that_only_serves_refuses_the_rest(
        self, engine: Engine, policy: Policy, tmp_path: Path
    ) -> None:
        if engine.trains:
            pytest.skip("The engine trains")
        batch, directory = batch_of(policy, await _ask(engine, policy), step=0), str(tmp_path)
        with pytest.raises(ConfigError):
            await engine.update(batch)
        with pytest.raises(ConfigError):
            await engine.save(policy.name, directory)
        with pytest.raises(ConfigError):
            await engine.load(policy.name, directory, version=1)
        with pytest.raises(ConfigError):
            await engine.fingerprint(policy.name)

    async def test_a_cancelled_call_stops_generating(
        self, engine: Engine, policy: Policy, under_way: UnderWay
    ) -> None:
        for _ in range(_TRIES):
            asking = asyncio.create_task(_ask(engine, policy, **_LONG))
            while not asking.done() and not await under_way():  # noqa: ASYNC110 (there is no event)
                await asyncio.sleep(0)
            seen = not asking.done()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            if seen:
                break
        else:
            pytest.fail("No answer was seen under way: correct the fixture under_way")
        await self._at_rest(engine, policy, under_way)

    async def test_a_stream_that_is_closed_stops_generating(
        self, engine: Engine, policy: Policy, under_way: UnderWay
    ) -> None:
        backend = engine.backend(policy.name)
        body = request(policy, backend, stream=True, **_LONG)
        for _ in range(_TRIES):
            reply = await backend.chat(body, headers={}, timeout_s=60.0)
            async for _ in reply.body():
                break
            seen = await under_way()
            await reply.close()
            if seen:
                break
        else:
            pytest.fail("No answer was seen under way: correct the fixture under_way")
        await self._at_rest(engine, policy, under_way)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_call_that_runs_out_of_time_fails_and_stops_generating(
        self, engine: Engine, policy: Policy, under_way: UnderWay, stream: bool
    ) -> None:
        backend = engine.backend(policy.name)
        body = request(policy, backend, stream=stream, **_LONG)
        with pytest.raises(EngineError):
            await ask(backend, body, timeout_s=0.001)
        await self._at_rest(engine, policy, under_way)

    async def test_token_ids_are_of_the_declared_vocabulary(
        self, engine: Engine, policy: Policy
    ) -> None:
        size = engine.vocab_size(policy.name)
        answer = await _ask(engine, policy, n=4, temperature=2.0)
        ids = {*answer.prompt, *(i for choice in answer.choices for i in choice.token_ids)}
        assert min(ids) >= 0
        assert size is None or max(ids) < size, f"vocab_size is {size}, ids go up to {max(ids)}"

    async def test_a_prompt_is_as_long_as_counted(self, engine: Engine, policy: Policy) -> None:
        backend = engine.backend(policy.name)
        counted = await backend.count_tokens(request(policy, backend))
        if counted is not None:
            assert counted.tokens == len((await _ask(engine, policy)).prompt)
            known = {counted.limit, await backend.context_length()} - {None}
            assert len(known) <= 1, f"count_tokens and context_length differ: {known}"

    async def test_a_prompt_beyond_the_declared_context_is_refused(
        self, engine: Engine, policy: Policy
    ) -> None:
        limit = await engine.backend(policy.name).context_length()
        if limit is not None:
            long = await _refusable(engine, policy, "price " * limit)
            assert long.status >= 400, f"context_length is {limit}, {len(long.prompt)} are answered"

    async def test_tools_are_shown_as_declared(self, engine: Engine, policy: Policy) -> None:
        declared = engine.shows_tools(policy.name)
        without = await _ask(engine, policy)
        shown = (await _ask(engine, policy, tools=[_TOOL])).prompt != without.prompt
        known = declared is not None or engine.trains
        assert not known or shown is bool(declared), (
            f"shows_tools is {declared}, prompts differ: {shown}"
        )

    async def test_images_are_marked_as_declared(self, engine: Engine, policy: Policy) -> None:
        token = engine.image_token(policy.name)
        picture = {"type": "image_url", "image_url": {"url": _PIXEL}}
        answer = await _refusable(engine, policy, [picture, {"type": "text", "text": TEXT}])
        if token is not None:
            assert token in answer.prompt, f"Id {token} is not in the prompt: {answer.error}"
        elif engine.trains:
            assert answer.status >= 400, "An image is accepted, but image_token declares none"

    async def test_conversations_are_rendered_as_they_are_prompted(
        self, engine: Engine, policy: Policy
    ) -> None:
        render = engine.renderer(policy.model)
        if render is not None:
            prompt = (await _ask(engine, policy)).prompt
            said = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "9 euros"}]
            assert list(render(said, []))[: len(prompt)] == prompt

    async def test_the_old_version_serves_while_the_new_one_is_trained(
        self, engine: Engine, policy: Policy, recompute: Recompute, tmp_path: Path
    ) -> None:
        if not engine.overlaps:
            kind = type(engine)
            assert kind.train is Engine.train or kind.overlaps is not Engine.overlaps, (
                "train is defined, but overlaps declares that it is never called"
            )
            return
        weights = await _weights(engine, policy, tmp_path / "old")
        update = await engine.train(await _batch(engine, policy, step=0))
        self._check(await _ask(engine, policy), recompute, weights)
        await engine.publish(policy.name)
        weights = await _weights(engine, policy, tmp_path / "new")
        self._check(await _ask(engine, policy), recompute, weights)
        following = await engine.update(await _batch(engine, policy, step=1))
        assert following.version == update.version + 1

    def _check(
        self, answer: ChatAnswer, recompute: Recompute, weights: str, temperature: float = 1.0
    ) -> None:
        """Check that these weights sampled an answer."""
        used = temperature if self.logprobs == "processed" else 1.0
        for choice in answer.choices:
            assert len(choice.logprobs) == len(choice.token_ids), "one log-probability per token"
            expected = recompute(weights, answer.prompt, choice.token_ids, used)
            assert choice.logprobs == pytest.approx(list(expected), abs=self.tolerance)

    async def _at_rest(self, engine: Engine, policy: Policy, under_way: UnderWay) -> None:
        """Wait until nothing is generated any more, and check that the engine still answers."""
        try:
            async with asyncio.timeout(self.patience_s):
                while await under_way():  # noqa: ASYNC110 (there is no event)
                    await asyncio.sleep(0)
        except TimeoutError:
            pytest.fail("The engine still generates an answer that was aborted")
        assert (await _ask(engine, policy)).choices


async def _ask(engine: Engine, policy: Policy, content: Any = TEXT, **fields: Any) -> ChatAnswer:
    answer = await _refusable(engine, policy, content, **fields)
    assert answer.status == 200, answer.error
    return answer


async def _refusable(engine: Engine, policy: Policy, content: Any, **fields: Any) -> ChatAnswer:
    backend: Backend = engine.backend(policy.name)
    return await ask(backend, request(policy, backend, content, **fields))


def _sampled(answer: ChatAnswer) -> list[tuple[int, ...]]:
    return [tuple(choice.token_ids) for choice in answer.choices]


async def _weights(engine: Engine, policy: Policy, directory: Path) -> str:
    """Return the served weights in the form that `Recompute` takes."""
    if not engine.trains:
        return policy.model
    target = directory / "weights"
    await engine.save(policy.name, str(target), resumable=False)
    return str(target)


def _training_state(directory: str) -> list[Path]:
    return list(Path(directory).rglob("training_state*"))


def _need_training(engine: Engine) -> None:
    if not engine.trains:
        pytest.skip("The engine only serves")


async def _batch(engine: Engine, policy: Policy, *, step: int, version: int = 0) -> Batch:
    """Return a batch of answers that the policy samples now."""
    return batch_of(policy, await _ask(engine, policy, n=2), step=step, version=version)
