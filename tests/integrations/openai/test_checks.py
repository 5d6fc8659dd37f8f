"""What the doctor is told of the plain client's pitfalls."""

import openai
import pytest
from agl_openai._checks import pitfalls
from agl_openai._integration import OpenAIIntegration
from agl_testing.attempts import CallOptions, ScriptedAttempt
from agl_testing.bench import Bench
from agl_testing.check_contract import CheckContract
from agl_testing.scenario import WRITER

from agl_core.config import RunConfig
from agl_core.interfaces import AttemptRecord
from agl_core.tracing import agent_scope, attach
from agl_core.types import AttemptStatus, Failure, FailureKind


def failed(message, type_="", *, called=True, options=None):
    script = ScriptedAttempt()
    if called:
        script.call(WRITER, [1], [2], options=options or CallOptions())
    failure = Failure(kind=FailureKind.AGENT, message=message, type=type_)
    return script.record(AttemptStatus.FAILED, failure=failure)


def found(*records):
    return {finding.check: finding for finding in pitfalls(records, RunConfig())}


class _Healthy(CheckContract):
    @pytest.fixture
    def check(self):
        return pitfalls

    @pytest.fixture
    def healthy(self):
        script = ScriptedAttempt()
        script.call(WRITER, [1], [2])
        return [script.record()]


class TestRetries(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        script.call(WRITER, [1], [2], tries=2)
        return [script.record()]


class TestRefused(_Healthy):
    @pytest.fixture
    def pitfall(self):
        script = ScriptedAttempt()
        error = "unsupported_parameter: background: cannot serve True: wait, or stream"
        script.call(WRITER, [], [], complete=False, error=error, status_code=400)
        return [script.record()]


class TestAddress(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [failed("Connection error.", "openai.APIConnectionError", called=False)]


class TestClosedLoop(_Healthy):
    @pytest.fixture
    def pitfall(self):
        return [failed("RuntimeError: Event loop is closed")]


class TestUnmarked(_Healthy):
    @pytest.fixture
    def pitfall(self):
        message = "litellm.InternalServerError: Aiohttp_openaiException - Bad Request"
        return [failed(message, "litellm.InternalServerError", called=False)]


def test_a_connection_that_broke_on_the_way_is_no_wrong_address():
    assert found(failed("Connection error.", "openai.APIConnectionError")) == {}


def test_programs_of_frameworks_are_left_to_their_integrations():
    options = CallOptions(framework="toy")
    assert found(failed("Event loop is closed", options=options)) == {}


async def test_retries_of_the_real_client_are_found_with_their_status():
    async with Bench.open() as bench:
        attachment = attach(integrations=[OpenAIIntegration()])
        bench.fake.fail(1, status=503)

        def program(job):
            client = openai.OpenAI(base_url=job.base_url, api_key=job.api_key)
            messages = [{"role": "user", "content": job.question}]
            with client, agent_scope(WRITER):
                client.chat.completions.create(model=job.model(WRITER), messages=messages)

        played = await bench.one(program)
        attachment.detach()
    assert played.error is None
    assert found(played.record)["openai.retries"].figures == {"calls": 1, "statuses": [503]}


async def test_a_response_that_only_openai_can_give_is_found():
    async with Bench.open() as bench:
        attachment = attach(integrations=[OpenAIIntegration()])

        def program(job):
            client = openai.OpenAI(base_url=job.base_url, api_key=job.api_key)
            with client, agent_scope(WRITER):
                client.responses.create(
                    model=job.model(WRITER), input="and?", previous_response_id="resp_1"
                )

        played = await bench.one(program)
        attachment.detach()
    finding = found(played.record)["openai.responses"]
    assert finding.figures == {"calls": 1}
    assert "previous_response_id: cannot serve 'resp_1'" in finding.measured


def test_the_real_client_calls_its_connection_error_so():
    """A client that keeps an address at which nothing listens."""
    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    with client, pytest.raises(openai.APIConnectionError) as caught:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    kind = type(caught.value)
    failure = failed("Connection error.", f"{kind.__module__}.{kind.__qualname__}", called=False)
    assert isinstance(failure, AttemptRecord)
    assert found(failure)["openai.address"].severity == "error"
