"""The contract of framework integrations, checked against the backend's log.

::

    class TestMine(IntegrationContract):
        package = "agl_mine"
        frameworks = ("mine",)

        def integration(self): return MineIntegration()
        def program(self): return MineProgram()          # the scenario, written in the framework
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any, ClassVar

import msgspec

import agl_core.tracing as agl
from agl_core import semconv
from agl_core.interfaces import Integration
from agl_core.runner import failure_of
from agl_core.tracing import Recorder
from agl_core.types import Claim, FailureKind, PromptTemplate, Span, SpanKind
from agl_testing import _captured
from agl_testing._guard import ContractSuite
from agl_testing.bench import Action, Bench, Played
from agl_testing.fake_openai import FakeOptions
from agl_testing.scenario import (
    ANSWER,
    CAPABILITIES,
    EXPECTED,
    ITEM,
    JUDGE,
    PLANNER,
    SYSTEM,
    TOOL,
    TOOL_RESULT,
    WRITER,
    Job,
    ScenarioProgram,
    skeleton,
)

__all__ = ["IntegrationContract"]

_INTERLEAVED = 50
_TRIES = 20
"""More than the number of times that any framework sends a refused request."""
_OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 10 tokens, got 99",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    }
}
_TUNED = "Answer in one sentence, and name the currency."
_STABLE = FakeOptions(stable=True)
"""Equal texts have equal ids, so that runs can be compared."""


class IntegrationContract(ContractSuite):
    """Contract suite of integrations: supply the names, `integration` and `program`."""

    package: ClassVar[str]
    """Import name of the integration."""
    frameworks: ClassVar[tuple[str, ...]]
    """Import names that the integration needs; a test hides them and checks the error."""

    def integration(self) -> Integration:
        """Return a new, unattached integration."""
        raise NotImplementedError("Supply integration(): a fresh, unattached integration")

    def program(self) -> ScenarioProgram:
        """Return the scenario in the framework."""
        raise NotImplementedError("Supply program(): the scenario in the framework")

    def framework_state(self) -> Any:
        """Return all state of the framework that `attach` changes, in a comparable form."""
        return None

    def test_importing_needs_no_framework_and_using_names_the_pip_line(self) -> None:
        done = subprocess.run(  # noqa: S603  our own interpreter and module
            [sys.executable, "-m", "agl_testing._hidden", self.package, *self.frameworks],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines
        assert all("pip install " in line for line in lines), done.stdout

    def test_capabilities_are_declared(self) -> None:
        program = self.program()
        assert program.lacks.keys() <= set(CAPABILITIES), "a declared capability does not exist"
        for name in CAPABILITIES:
            written = getattr(type(program), name) is not getattr(ScenarioProgram, name)
            assert written != bool(program.lacks.get(name)), (
                f"write {name} or say why there is none"
            )

    async def test_the_skeleton_is_that_of_every_framework(self) -> None:
        async with self._attached() as bench:
            played = await self._play(bench, _rewarded(self.program()))
            assert played.output == ANSWER
            assert skeleton(played.spans) == EXPECTED
            tools = [span for span in played.spans if span.kind is SpanKind.TOOL]
            assert [tool.attributes[semconv.GEN_AI_TOOL_NAME] for tool in tools] == [TOOL]
            assert [tool.attributes[semconv.GEN_AI_TOOL_RESULT] for tool in tools] == [TOOL_RESULT]
            answered = {call.id: call.response_id for call in played.calls}
            sent = [span for span in played.spans if span.kind is SpanKind.LLM]
            order = [answered[span.call_id or ""] for span in sent]
            assert order == [answer.id for answer in bench.fake.log]
            adapted = played.adapt(PLANNER, WRITER)
            assert adapted.seen == {PLANNER, WRITER}
            assert {name: each.value for name, each in adapted.returns.items()} == {
                PLANNER: 1.0,
                WRITER: 1.5,
            }

    async def test_tools_have_arguments_and_calls_have_usage(self) -> None:
        program = self.program()
        async with self._attached() as bench:
            played = await self._play(bench, program.run)
            (tool,) = [span for span in played.spans if span.kind is SpanKind.TOOL]
            given = tool.attributes[semconv.GEN_AI_TOOL_ARGUMENTS]
            assert (json.loads(given) if isinstance(given, str) else given) == {"item": ITEM}
            usage = _captured.usage(played)
            if program.hides_usage:
                assert not usage, "hides_usage is declared, but spans have it"
            else:
                assert usage == {answer.id: answer.usage for answer in bench.fake.log}

    async def test_token_ids_equal_the_log_of_the_backend(self) -> None:
        async with self._attached() as bench:
            played = await self._play(bench, self.program().run)
            _captured.check_tokens(played, bench.fake.log)
            responses = {call.id: call.response_id for call in played.calls}
            answers = {answer.id: answer for answer in bench.fake.log}
            found = _captured.triplets(played, PLANNER, WRITER)
            assert len(found) == len(answers) == 3
            for triplet in found:
                answer = answers[responses[triplet.call_id]]
                assert triplet.prompt_ids.tolist() == answer.prompt_token_ids
                assert triplet.response_ids.tolist() == answer.choices[0].token_ids

    async def test_one_span_per_call_with_the_right_agent_and_parent(self) -> None:
        async with self._attached() as bench:
            played = await self._play(bench, self.program().run)
            for span in _captured.check_identity(played).values():
                agents = [
                    each
                    for each in _captured.ancestors(played.spans, span)
                    if each.kind is SpanKind.AGENT
                ]
                assert agents[0].agent == span.agent
                assert agents[0].agent_run_id == span.agent_run_id

    async def test_every_form_gives_equal_triplets(self) -> None:
        program = self.program()
        async with self._attached(_STABLE) as bench:
            plain = await self._play(bench, program.run)
            expected = _captured.comparable(_captured.triplets(plain, PLANNER, WRITER))
            for name in ("arun", "stream", "astream"):
                if name in program.lacks:
                    continue
                played = await self._play(bench, getattr(program, name))
                assert played.output == ANSWER, name
                assert {call.streamed for call in played.calls} == {"stream" in name}, name
                found = _captured.comparable(_captured.triplets(played, PLANNER, WRITER))
                assert found == expected, name
                assert skeleton(played.spans) == EXPECTED, name
                _captured.check_tokens(played, bench.fake.log)
                _captured.check_identity(played)

    async def test_a_request_that_is_sent_again_is_one_call(self) -> None:
        program = self.program()
        async with self._attached() as bench:
            bench.fake.fail(1)
            if program.sends_once:
                played = await bench.one(program.run)
                assert played.error is not None, "sends_once is declared, but it is sent again"
                return
            played = await self._play(bench, program.run)
            assert played.output == ANSWER
            assert (len(bench.fake.refused), len(bench.fake.log)) == (1, 3)
            # Some frameworks write a span per request, so the failed request has a separate span.
            assert skeleton([span for span in played.spans if not _failed(span)]) == EXPECTED
            adapted = played.adapt(PLANNER, WRITER)
            found = _captured.triplets(played, PLANNER, WRITER)
            assert adapted.calls == len(found) == 3
            assert [triplet.response_ids.tolist() for triplet in found] == [
                answer.choices[0].token_ids for answer in bench.fake.log
            ]

    async def test_structured_output_equals_the_log(self) -> None:
        program = self.program()
        if "structured" in program.lacks:
            return
        async with self._attached() as bench:
            played = await self._play(bench, program.structured)
            assert dict(played.output) == {"item": ITEM}
            _captured.check_tokens(played, bench.fake.log)
            _captured.check_identity(played)
            assert {call.agent for call in played.calls} == {WRITER}

    async def test_parallel_agents_with_equal_texts_keep_their_names(self) -> None:
        program = self.program()
        if "parallel" in program.lacks:
            return
        async with self._attached() as bench:
            bench.interleave(2)
            played = await self._play(bench, program.parallel)
            assert list(played.output) == [ANSWER, ANSWER]
            assert sorted(call.agent for call in played.calls) == [PLANNER, WRITER]
            _captured.check_tokens(played, bench.fake.log)
            _captured.check_identity(played)

    async def test_an_agent_in_a_tool_speaks_for_itself(self) -> None:
        program = self.program()
        if "delegate" in program.lacks:
            return
        async with self._attached() as bench:
            played = await self._play(bench, program.delegate)
            spans = _captured.check_identity(played)
            assert [call.agent for call in played.calls] == [PLANNER, WRITER, PLANNER]
            inner = spans[played.calls[1].id]
            around = _captured.ancestors(played.spans, inner)
            assert PLANNER in {span.agent for span in around if span.kind is SpanKind.AGENT}
            runs = [call.agent_run_id for call in played.calls]
            assert runs[1] not in (runs[0], runs[2])
            assert {each.agent for each in _captured.triplets(played, PLANNER)} == {PLANNER}

    async def test_a_model_in_a_tool_has_no_agent(self) -> None:
        program = self.program()
        if "judge" in program.lacks:
            return
        async with self._attached() as bench:
            played = await self._play(bench, program.judge)
            _captured.check_identity(played, names={JUDGE: None})
            assert [_captured.speaker(call) for call in played.calls] == [PLANNER, JUDGE, PLANNER]

    async def test_selecting_the_writer_gives_only_its_calls(self) -> None:
        async with self._attached() as bench:
            played = await self._play(bench, self.program().run)
            adapted = played.adapt(WRITER)
            assert adapted.trajectories.keys() == adapted.returns.keys() == {WRITER}
            writers = [call.id for call in played.calls if _captured.speaker(call) == WRITER]
            found = _captured.triplets(played, WRITER)
            assert [triplet.call_id for triplet in found] == writers
            assert len(writers) == 1

    async def test_interleaved_rollouts_in_threads_never_mix(self) -> None:
        await self._never_mix(self.program().run)

    async def test_interleaved_rollouts_in_tasks_never_mix(self) -> None:
        program = self.program()
        if "arun" not in program.lacks:
            await self._never_mix(program.arun)

    async def test_the_exception_arrives_unchanged(self) -> None:
        program, error = self.program(), _AgentError("the shop is closed")
        async with self._attached() as bench:
            played = await bench.one(lambda job: program.fail(job, error))
            raised = played.error
            if program.wraps_errors:
                assert raised is not None
                assert raised is not error, "wraps_errors is declared, but nothing wraps it"
                raised = raised.__cause__
            assert raised is error
            ended = {span.agent: span for span in played.spans if span.kind is SpanKind.AGENT}
            assert ended[PLANNER].status == "error"
            assert "the shop is closed" in ended[PLANNER].error
            trace = ended[PLANNER].attributes.get(semconv.EXCEPTION_STACKTRACE, "")
            assert f"{_AgentError.__name__}: the shop is closed" in trace
            assert all(span.error != "not ended" for span in played.spans)

    async def test_an_uncut_prompt_ends_as_an_overflow(self) -> None:
        async with self._attached() as bench:
            bench.fake.fail(_TRIES, status=400, body=_OVERFLOW)
            played = await bench.one(self.program().run)
            assert played.error is not None
            found = failure_of(
                played.error, stage=FailureKind.AGENT, origins=frozenset(), late=False
            )
            assert found.kind is FailureKind.CONTEXT_OVERFLOW, played.error
            assert {call.status_code for call in played.calls} == {400}
            assert played.adapt(PLANNER).trajectories == {}

    async def test_a_failing_sink_never_reaches_the_agent(self) -> None:
        async with self._attached() as bench:
            action = self.program().run
            (played,) = await bench.play(action, recorder=_BrokenRecorder.of)
            assert (played.output, played.error) == (ANSWER, None)

    async def test_requests_and_output_are_the_same_with_and_without(self) -> None:
        async with self._attached(_STABLE) as bench:
            played = await self._play(bench, self.program().run)
        async with Bench.open(_STABLE) as bench:
            job = Job(bench.fake.base_url, "key", key=played.job.key)
            output = await asyncio.to_thread(self.program().run, job)
            bodies = [
                (each.body["messages"], each.body.get("tools", [])) for each in bench.fake.log
            ]
        assert output == played.output
        sent = [(call.messages, call.tools) for call in played.calls]
        assert _captured.without_ids(sent) == _captured.without_ids(bodies)

    async def test_a_captured_prompt_is_replaced_for_the_named_agent_alone(self) -> None:
        program = self.program()
        async with self._attached(_STABLE) as bench:
            plain = await self._play(bench, program.run)
            learned = bench.learn([plain], agents=(WRITER,))
            assert learned.agents == (WRITER,)
            old = "" if program.sends_no_head else SYSTEM
            if not old:
                assert not learned.known, (
                    f"sends_no_head is declared, but {learned.known!r} is sent"
                )
            assert old in learned.template, f"learned {learned.template!r}"
            tuned = learned.template.replace(old, _TUNED)
            prompts = {"prompt": msgspec.structs.replace(learned, template=tuned)}
            for name in ("run", "stream"):
                if name in program.lacks:
                    continue
                played = await self._play(bench, getattr(program, name), prompts=prompts)
                assert played.output == ANSWER, name
                assert skeleton(played.spans) == EXPECTED, name
                # The record equals what the model was sent.
                _captured.check_tokens(played, bench.fake.log)
                _captured.check_identity(played)
                sent = _captured.without_ids([(each.messages, each.tools) for each in played.calls])
                assert sent == _captured.with_prompt(plain, WRITER, old, _TUNED), name

    async def test_attaching_twice_records_once_and_detaching_restores(self) -> None:
        before = _send_functions(), self.framework_state()
        async with Bench.open() as bench:
            first = agl.attach(integrations=[self.integration()])
            second = agl.attach(integrations=[self.integration()])
            try:
                twice = await self._play(bench, self.program().run)
                first.detach()
                once = await self._play(bench, self.program().run)
            finally:
                first.detach()
                second.detach()
            for played in (twice, once):
                assert skeleton(played.spans) == EXPECTED
                _captured.check_identity(played)
            assert (_send_functions(), self.framework_state()) == before
            job = Job(bench.fake.base_url, "key")
            program = self.program()
            detached = await self._play(bench, lambda _: program.run(job))
            assert all(span.kind is not SpanKind.LLM for span in detached.spans)

    async def test_nothing_happens_outside_a_rollout(self) -> None:
        async with self._attached() as bench:
            job = Job(bench.fake.base_url, "key")
            assert await asyncio.to_thread(self.program().run, job) == ANSWER
            for answer in bench.fake.log:
                assert not [name for name in answer.headers if name.startswith("x-agl-")]

    async def test_a_wrong_join_is_caught(self) -> None:
        async with self._attached() as bench:
            played = await self._play(bench, self.program().run)
            _captured.check_wrong_join_is_caught(played)

    @asynccontextmanager
    async def _attached(self, options: FakeOptions | None = None) -> AsyncGenerator[Bench, None]:
        async with Bench.open(options) as bench:
            attachment = agl.attach(integrations=[self.integration()])
            try:
                yield bench
            finally:
                attachment.detach()

    async def _play(
        self, bench: Bench, action: Action, *, prompts: Mapping[str, PromptTemplate] | None = None
    ) -> Played:
        played = await bench.one(action, prompts=prompts)
        if played.error is not None:
            raise played.error
        return played

    async def _never_mix(self, action: Action) -> None:
        async with self._attached() as bench:
            # Many libraries initialize on first use, and not all of them are thread-safe then.
            await self._play(bench, action)
            bench.interleave(_INTERLEAVED)
            for played in await bench.play(action, rollouts=_INTERLEAVED):
                if played.error is not None:
                    raise played.error
                assert played.output == ANSWER
                assert skeleton(played.spans) == EXPECTED
                _captured.check_tokens(played, bench.fake.log)
                _captured.check_identity(played)
                assert played.job.question in str(played.calls[0].messages)
                assert len(_captured.triplets(played, WRITER)) == 1


def _failed(span: Span) -> bool:
    return span.kind is SpanKind.LLM and span.status == "error"


class _AgentError(Exception):
    """An exception of the user's code."""


class _BrokenRecorder(Recorder):
    """A recorder that raises in every method except for rewards."""

    @classmethod
    def of(cls, claim: Claim) -> Recorder:
        return cls(claim.rollout.id, claim.attempt.id)

    def _fail(self, *arguments: Any, **fields: Any) -> Any:
        del arguments, fields
        raise RuntimeError("the sink is broken")

    start = update = end = point = capture_error = _fail


def _rewarded(program: ScenarioProgram) -> Action:
    def action(job: Job) -> str:
        answer = program.run(job)
        agl.emit_reward(0.5, "style", agent=WRITER)
        return answer

    return action


def _send_functions() -> list[Any]:
    """Return the send functions that the wire wraps while attached."""
    libraries = [importlib.import_module(n) for n in ("httpx", "httpx2") if find_spec(n)]
    clients = [getattr(each, name) for each in libraries for name in ("Client", "AsyncClient")]
    return [client.send for client in clients]
