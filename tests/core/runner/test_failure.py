from __future__ import annotations

import httpx
import pytest

from agl_core.errors import (
    CaptureError,
    ContextOverflowError,
    DeadlineError,
    EngineError,
    MissingTokensError,
    RewardError,
)
from agl_core.runner._attempt import failure_of
from agl_core.tracing import origins_of
from agl_core.types import FailureKind

GATEWAY = "http://127.0.0.1:8000"
ORIGINS = origins_of(GATEWAY)


class ClientError(Exception):
    """What an SDK's status error looks like."""

    def __init__(self, message="", *, url=f"{GATEWAY}/v1/chat/completions", **attributes):
        super().__init__(message)
        self.request = httpx.Request("POST", url)
        for name, value in attributes.items():
            setattr(self, name, value)


def kind(error, *, stage=FailureKind.AGENT, late=False):
    return failure_of(error, stage=stage, origins=ORIGINS, late=late).kind


def chained(outer, inner, *, how="__cause__"):
    setattr(outer, how, inner)
    return outer


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("x"), FailureKind.AGENT),
        (SystemExit(3), FailureKind.AGENT),
        (KeyboardInterrupt(), FailureKind.AGENT),
        (DeadlineError("x"), FailureKind.DEADLINE),
        (EngineError("x"), FailureKind.ENGINE),
        (RewardError("x"), FailureKind.REWARD),
        (ContextOverflowError("x"), FailureKind.CONTEXT_OVERFLOW),
        (MissingTokensError("x"), FailureKind.CAPTURE),
        (chained(RuntimeError("wrapped"), EngineError("x")), FailureKind.ENGINE),
        (
            chained(RuntimeError("wrapped"), ContextOverflowError("x"), how="__context__"),
            FailureKind.CONTEXT_OVERFLOW,
        ),
    ],
)
def test_types_decide_through_causes_and_contexts(error, expected):
    assert kind(error) is expected


@pytest.mark.parametrize(
    "error",
    [
        ClientError(status_code=400, code="context_length_exceeded"),
        ClientError(status_code=400, body={"error": {"code": "context_length_exceeded"}}),
        ClientError(status_code=400, body={"code": "context_length_exceeded"}),
        ClientError("This model's maximum context length is 10 tokens", status_code=400),
        chained(
            ValueError("team failed"), ClientError(status_code=400, code="context_length_exceeded")
        ),
        RuntimeError("Error code: 400 - {'error': {'code': 'context_length_exceeded'}}"),
        ClientError(
            "You passed 4097 input tokens and requested 1 output tokens. However, the model's "
            "context length is only 4096 tokens",
            status_code=400,
        ),
        ClientError("the request exceeds the available context size", status_code=400),
        ClientError(
            "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000", status_code=422
        ),
        ClientError("prompt is too long: 200001 tokens > 200000 maximum", status_code=400),
        ClientError("Your input exceeds the context window of this model", status_code=400),
        RuntimeError(
            "BadRequestError: Error code: 400 - {'error': {'message': \"This model's maximum "
            'context length is 2048 tokens. However, your request has 2100 input tokens."}}'
        ),
        RuntimeError("litellm.ContextWindowExceededError: too long"),
    ],
)
def test_a_prompt_that_does_not_fit_is_an_overflow_however_it_is_wrapped(error):
    assert kind(error) is FailureKind.CONTEXT_OVERFLOW


def status_error(status, body):
    request = httpx.Request("POST", f"{GATEWAY}/v1/chat/completions")
    response = httpx.Response(status, json=body, request=request)
    return httpx.HTTPStatusError("Client error '400'", request=request, response=response)


def test_what_a_plain_client_was_answered_lies_in_its_response():
    overflow = {"error": {"code": 400, "message": "longer than the maximum model length of 96"}}
    coded = {"error": {"code": "context_length_exceeded", "message": "no"}}
    assert kind(status_error(400, overflow)) is FailureKind.CONTEXT_OVERFLOW
    assert kind(status_error(400, coded)) is FailureKind.CONTEXT_OVERFLOW
    assert kind(status_error(400, {"error": {"code": "invalid_body"}})) is FailureKind.AGENT
    assert kind(status_error(504, {"error": {"code": "deadline_exceeded"}})) is FailureKind.DEADLINE
    assert kind(status_error(502, ["no object"])) is FailureKind.ENGINE


def test_an_answer_that_cannot_be_read_hides_no_failure():
    class Streamed:
        status_code = 502

        @property
        def text(self):
            raise OSError("the connection was closed")

    assert kind(ClientError("bad gateway", response=Streamed())) is FailureKind.ENGINE
    nested = httpx.Response(400, content=b"[" * 60_000)
    assert kind(ClientError("refused", response=nested)) is FailureKind.AGENT


@pytest.mark.parametrize(
    "error",
    [
        ValueError("the prompt is too long for my taste"),
        ClientError("maximum context length", status_code=404, url="https://elsewhere.example/"),
        ValueError("no context of this length"),
    ],
)
def test_other_complaints_about_length_are_the_agents_own(error):
    assert kind(error) is FailureKind.AGENT


def connect_error(url):
    return httpx.ConnectError("refused", request=httpx.Request("POST", url))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ClientError(status_code=500), FailureKind.ENGINE),
        (ClientError(status_code=503, code=None), FailureKind.ENGINE),
        (ClientError("connection error"), FailureKind.ENGINE),
        (connect_error(f"{GATEWAY}/v1"), FailureKind.ENGINE),
        (connect_error("http://localhost:8000/v1"), FailureKind.ENGINE),
        (ClientError(status_code=504, code="deadline_exceeded"), FailureKind.DEADLINE),
        (ClientError(status_code=400, code="invalid"), FailureKind.AGENT),
        (ClientError(status_code=401), FailureKind.AGENT),
        (ClientError(status_code=500, url="http://search.example/"), FailureKind.AGENT),
        (connect_error("http://search.example/"), FailureKind.AGENT),
        (httpx.ConnectError("no request known"), FailureKind.AGENT),
    ],
)
def test_only_the_gateways_own_trouble_is_the_engines_fault(error, expected):
    assert kind(error) is expected


def test_members_of_exception_groups_are_looked_at():
    class GroupError(Exception):
        exceptions = (ValueError("x"), EngineError("y"))

    assert kind(GroupError()) is FailureKind.ENGINE


def test_cycles_of_causes_end():
    one, two = ValueError("a"), ValueError("b")
    one.__cause__, two.__cause__ = two, one
    assert kind(one) is FailureKind.AGENT


def test_a_judge_that_finds_the_engine_down_is_no_fault_of_the_reward():
    error = chained(RewardError("judge raised"), ClientError(status_code=502))
    assert kind(error, stage=FailureKind.REWARD) is FailureKind.ENGINE
    assert kind(ValueError("x"), stage=FailureKind.REWARD) is FailureKind.REWARD


def test_whatever_is_raised_past_the_deadline_came_of_the_deadline():
    assert kind(connect_error(GATEWAY), late=True) is FailureKind.DEADLINE


def test_the_failure_keeps_type_message_and_traceback():
    def inner():
        raise KeyError("missing")

    try:
        inner()
    except KeyError as error:
        failure = failure_of(error, stage=FailureKind.AGENT, origins=ORIGINS, late=False)
    assert failure.type == "builtins.KeyError"
    assert failure.message == "KeyError: 'missing'"
    assert "in inner" in failure.traceback


def test_the_message_names_the_cause_that_a_client_wraps():
    """C2: openai 2 raises "Connection error." from whatever its transport raises."""
    refused = CaptureError("refused: add 'api.test' to capture.allow_hosts")
    error = chained(ClientError("Connection error.", url="http://api.test"), refused)
    failure = failure_of(error, stage=FailureKind.AGENT, origins=ORIGINS, late=False)
    assert failure.kind is FailureKind.CAPTURE
    assert failure.message == (
        "ClientError: Connection error. (caused by CaptureError: refused: add 'api.test' to "
        "capture.allow_hosts)"
    )
    quoted = chained(RewardError(f"judge: CaptureError: {refused}"), refused)
    failure = failure_of(quoted, stage=FailureKind.REWARD, origins=ORIGINS, late=False)
    assert failure.message == f"RewardError: judge: CaptureError: {refused}"


def test_sys_exit_is_named_with_its_code_and_the_fix():
    failure = failure_of(SystemExit(3), stage=FailureKind.AGENT, origins=ORIGINS, late=False)
    assert failure.message == "The agent called sys.exit(3): return or raise instead"


def test_real_sdk_errors_are_recognised():
    openai = pytest.importorskip("openai")
    library = pytest.importorskip("httpx2")
    request = library.Request("POST", f"{GATEWAY}/v1/chat/completions")

    def status(code, body):
        response = library.Response(code, request=request)
        return openai.APIStatusError("failed", response=response, body=body)

    assert kind(openai.APIConnectionError(request=request)) is FailureKind.ENGINE
    assert kind(openai.APITimeoutError(request=request)) is FailureKind.ENGINE
    assert kind(status(500, None)) is FailureKind.ENGINE
    overflow = status(400, {"code": "context_length_exceeded", "message": "too long"})
    assert kind(overflow) is FailureKind.CONTEXT_OVERFLOW
