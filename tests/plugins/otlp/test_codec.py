"""Spans survive the way out and back; strangers' spans are understood or refused one by one."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from agl_otlp._decode import Sender, decode
from agl_otlp._encode import encode_attempt, request, span_id, trace_id
from agl_otlp._values import Malformed, any_value, plain
from agl_testing.attempts import CallOptions, ScriptedAttempt
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agl_core.tracing import Recorder
from agl_core.types import (
    AttemptStatus,
    Choice,
    Failure,
    FailureKind,
    Reward,
    RewardTarget,
    Span,
    SpanKind,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
USAGE = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
NAMES = TEXT.filter(lambda name: not name.startswith("agl.")) | st.sampled_from(USAGE)
INTS = st.integers(-(2**63), 2**63 - 1)
LEAVES = st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | TEXT | st.binary()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
TARGETS = st.one_of(
    st.just(RewardTarget()),
    st.builds(RewardTarget, call=TEXT, choice=st.none() | st.integers(0, 9)),
    st.builds(RewardTarget, agent=TEXT),
    st.builds(RewardTarget, agent_run=TEXT),
)
REWARDS = st.builds(
    Reward,
    value=st.floats(allow_nan=False, allow_infinity=False),
    channel=TEXT.filter(bool),
    target=TARGETS,
    source=TEXT,
    why=TEXT,
)


@st.composite
def spans(draw):
    kind = draw(st.sampled_from(SpanKind))
    start = draw(st.integers(0, 2**62))
    return Span(
        id=draw(TEXT.filter(bool)),
        rollout_id="ro_1",
        attempt_id="at_1",
        kind=kind,
        name=draw(TEXT),
        parent_id=draw(st.none() | TEXT),
        agent=draw(st.none() | TEXT),
        agent_run_id=draw(st.none() | TEXT),
        sequence=draw(st.integers(0, 2**31)),
        start_ns=start,
        end_ns=start + draw(st.integers(0, 2**40)),
        status=draw(st.sampled_from(["unset", "ok", "error"])),
        error=draw(TEXT),
        attributes=draw(st.dictionaries(NAMES, VALUES, max_size=4)),
        call_id=draw(st.none() | TEXT),
        reward=draw(REWARDS) if kind is SpanKind.REWARD else None,
    )


def round_trip(record, **options):
    return decode(json.loads(request([encode_attempt(record, **options)])))


@given(found=st.lists(spans(), max_size=4))
def test_every_span_comes_back(found):
    script = ScriptedAttempt()
    script.spans = found

    back = round_trip(script.record())

    assert back.spans == found
    assert back.refused == []
    assert back.received == len(found) + 1


@given(value=VALUES)
def test_every_value_comes_back(value):
    text = json.dumps(any_value(value), allow_nan=False)

    assert plain(json.loads(text), where="here") == value


def test_values_that_otlp_has_no_form_for_become_their_text():
    assert any_value(2**63) == {"stringValue": str(2**63)}
    assert any_value("\ud800x") == {"stringValue": "\ufffdx"}
    assert math.isnan(plain(any_value(math.nan), where="here"))


def spoken():
    script = ScriptedAttempt()
    agent = script.agent("writer", run="run-1")
    options = CallOptions(parent=agent.id, run="run-1")
    choice = Choice(
        token_ids=[5, 6],
        logprobs=[-0.5, -0.25],
        text="83",
        reasoning="hm",
        tool_calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        finish_reason="stop",
    )
    asked = [
        {"role": "user", "content": [{"type": "text", "text": "mug?"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": choice.tool_calls},
        {"role": "tool", "tool_call_id": "c", "content": "83"},
    ]
    call = script.call(
        "writer",
        [1, 2, 3],
        messages=asked,
        choices=[choice],
        model="gpt-x",
        response_id="r-1",
        options=options,
    )
    script.reward(0.5, call=call)
    return script


def sent(record, **options):
    block = encode_attempt(record, **options)
    (scope,) = block["scopeSpans"]
    rows = []
    for row in scope["spans"]:
        pairs = {pair["key"]: plain(pair["value"], where="here") for pair in row["attributes"]}
        rows.append((row, pairs))
    return block, rows


def test_an_attempt_is_one_trace_with_the_gateways_span_below_the_clients():
    record = spoken().record()

    block, rows = sent(record)

    root, agent, client, gateway, reward = (row for row, _ in rows)
    assert {row["traceId"] for row, _ in rows} == {trace_id(record.attempt.id)}
    assert root["name"] == "attempt task"
    assert "parentSpanId" not in root
    assert agent["parentSpanId"] == root["spanId"] == span_id(record.attempt.id, "")
    assert client["parentSpanId"] == agent["spanId"]
    assert gateway["parentSpanId"] == client["spanId"]
    assert reward["parentSpanId"] == root["spanId"]
    assert [row["kind"] for row, _ in rows] == [1, 1, 3, 2, 1]
    resource = {p["key"]: plain(p["value"], where="") for p in block["resource"]["attributes"]}
    assert resource["service.name"] == "agl"
    assert resource["agl.attempt"] == record.attempt.id


def test_readers_that_know_nothing_of_ours_find_the_standard_names():
    _, rows = sent(spoken().record())
    agent, gateway = rows[1][1], rows[3][1]

    assert agent["gen_ai.operation.name"] == "invoke_agent"
    assert agent["gen_ai.agent.name"] == "writer"
    assert gateway["gen_ai.operation.name"] == "chat"
    assert gateway["gen_ai.request.model"] == "gpt-x"
    assert gateway["gen_ai.response.id"] == "r-1"
    assert gateway["gen_ai.response.finish_reasons"] == ["stop"]
    assert gateway["gen_ai.usage.input_tokens"] == 3
    assert gateway["gen_ai.usage.output_tokens"] == 2
    assert "gen_ai.input.messages" not in gateway


def usage_of(record):
    """What a reader gets who sums usage over a trace: per attribute, and in how many spans."""
    _, rows = sent(record)
    found = [[pairs[name] for _, pairs in rows if name in pairs] for name in USAGE]
    return [(sum(values), len(values)) for values in found]


def test_the_usage_of_a_call_stands_on_one_span():
    """B7: a framework's span, a model that wraps another, and the gateway state the same call."""
    script = ScriptedAttempt()
    told = dict(zip(USAGE, (3, 2), strict=True))
    agent = script.agent("writer")
    outer = script.client_span("writer", call_id=None, options=CallOptions(parent=agent.id))
    options = CallOptions(parent=outer.id)
    call = script.call("writer", [1, 2, 3], [5, 6], options=options)
    script.spans = [
        replace(span, attributes=told) if span.kind is SpanKind.LLM else span
        for span in script.spans
    ]
    record = script.record()

    assert usage_of(record) == [(3, 1), (2, 1)]
    _, rows = sent(record)
    assert [row["kind"] for row, pairs in rows if USAGE[0] in pairs] == [2], "the gateway's"
    assert [span.attributes for span in round_trip(record).spans if span.call_id == call] == [
        told,
        told,
    ]


def test_the_innermost_span_states_the_usage_that_the_gateway_does_not_know():
    """B7: a stream of a frozen agent, of which the gateway is told no usage."""
    script = ScriptedAttempt()
    told = dict(zip(USAGE, (3, 2), strict=True))
    outer = script.client_span("judge", call_id=None, attributes=told)
    options = CallOptions(parent=outer.id)
    call = script.call("judge", [], [], options=options, trainable=False)
    script.spans = [
        replace(span, attributes=told) if span.call_id == call and span.call is None else span
        for span in script.spans
    ]

    assert usage_of(script.record()) == [(3, 1), (2, 1)]


def test_usage_that_is_not_known_is_absent():
    """B7: frameworks write 0 where a stream did not state it."""
    script = ScriptedAttempt()
    script.client_span("judge", call_id="c", attributes=dict.fromkeys(USAGE, 0))

    assert usage_of(script.record()) == [(0, 0), (0, 0)]


def test_tries_that_were_superseded_state_no_usage():
    """B7: the call's usage is that of the try which is its record."""
    script = ScriptedAttempt()
    call = script.call("writer", [1, 2, 3], [5, 6], tries=2)
    (span,) = [span.call for span in script.spans if span.call is not None]
    script.gateway_span(replace(span, tries=1, superseded=True))
    assert {each.call_id for each in script.spans} == {call}

    assert usage_of(script.record()) == [(3, 1), (2, 1)]


def test_content_is_told_on_request_in_the_form_of_the_conventions():
    _, rows = sent(spoken().record(), content=True)
    gateway = rows[3][1]

    assert json.loads(gateway["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "mug?"}, {"type": "image_url"}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": "{}"}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "83"}]},
    ]
    (answer,) = json.loads(gateway["gen_ai.output.messages"])
    assert [part["type"] for part in answer["parts"]] == ["reasoning", "text", "tool_call"]
    assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize("content", [False, True])
def test_token_ids_never_leave(content):
    text = request([encode_attempt(spoken().record(), content=content)]).decode()

    assert "logprob" not in text
    assert "token_ids" not in text
    assert 'arrayValue":{"values":[{"intValue' not in text


def test_a_call_comes_back_without_its_tokens():
    script = spoken()

    back = round_trip(script.record(), content=True)

    assert back.spans == [msgspec.structs.replace(span, call=None) for span in script.spans]


def test_a_failed_attempt_says_why():
    failure = Failure(kind=FailureKind.AGENT, message="broke", type="ValueError", traceback="tb")

    _, rows = sent(ScriptedAttempt().record(AttemptStatus.FAILED, failure=failure))

    root, attributes = rows[0]
    assert root["status"] == {"code": 2, "message": "broke"}
    assert attributes["agl.failure"] == "agent"
    assert attributes["exception.type"] == "ValueError"


def otel(number=1, parent=0, name="work", status=None, **attributes):
    row = {
        "traceId": "ab" * 16,
        "spanId": f"{number:016x}",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": "5",
        "endTimeUnixNano": "7",
        "attributes": [
            {"key": key.replace("__", "."), "value": any_value(value)}
            for key, value in attributes.items()
        ],
    }
    if parent:
        row["parentSpanId"] = f"{parent:016x}"
    if status:
        row["status"] = status
    return row


def body(*rows, resource=None):
    given = [{"key": key, "value": any_value(value)} for key, value in (resource or {}).items()]
    scope = {"name": "shop.tracer"}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": given},
                "scopeSpans": [{"scope": scope, "spans": list(rows)}],
            }
        ]
    }


ME = Sender(rollout_id="ro", attempt_id="at")


def test_a_strangers_span_is_an_operation_of_its_sender():
    found = decode(body(otel(name="fetch", size=3), resource={"service.name": "shop"}), sender=ME)

    (span,) = found.spans
    assert (span.id, span.kind, span.name) == ("otel_" + "0" * 15 + "1", "operation", "fetch")
    assert (span.rollout_id, span.attempt_id) == ("ro", "at")
    assert (span.start_ns, span.end_ns, span.status) == (5, 7, "unset")
    assert span.attributes == {
        "size": 3,
        "service.name": "shop",
        "otel.scope.name": "shop.tracer",
    }


def test_kinds_and_agents_follow_the_gen_ai_names():
    rows = [
        otel(1, name="invoke", gen_ai__operation__name="invoke_agent", gen_ai__agent__name="a"),
        otel(2, 1, gen_ai__operation__name="execute_tool"),
        otel(3, 2, gen_ai__operation__name="chat", agl__call="call_1"),
        otel(4, 1, gen_ai__operation__name="chat"),
        otel(5, 0, agl__kind="tool"),
    ]

    found = decode(body(*rows), sender=ME).spans

    assert [span.kind for span in found] == ["agent", "tool", "llm", "operation", "tool"]
    assert [span.agent for span in found] == ["a", "a", "a", "a", None]
    assert found[2].call_id == "call_1"
    assert found[2].parent_id == found[1].id
    by_url = decode(body(*rows), sender=Sender(rollout_id="r", attempt_id="a", agent="me")).spans
    assert by_url[4].agent == "me"


def test_spans_that_point_at_each_other_end():
    found = decode(body(otel(1, 2), otel(2, 1)), sender=ME)

    assert [span.agent for span in found.spans] == [None, None]


def test_rewards_come_from_any_language():
    found = decode(
        body(
            otel(1, agl__reward__value=1),
            otel(2, agl__reward__value=0.5, agl__reward__agent="w", agl__reward__channel="style"),
            otel(3, agl__reward__value=0, agl__reward__why=" no price "),
        ),
        sender=ME,
    )

    assert {span.kind for span in found.spans} == {"reward"}
    assert [span.reward for span in found.spans] == [
        Reward(value=1.0),
        Reward(value=0.5, channel="style", target=RewardTarget(agent="w")),
        Reward(value=0.0, why="no price"),
    ]
    assert found.truncated == 0


def test_a_reason_of_another_program_is_cut_and_ours_was_cut_when_it_was_recorded():
    row = otel(1, agl__reward__value=1.0, agl__reward__why="x" * 16_385)
    script = ScriptedAttempt()
    recorder = Recorder("ro_1", "at_1")
    recorder.reward(Reward(value=1.0, why="x" * 20_000))
    script.spans = recorder.drain()

    theirs, ours = decode(body(row), sender=ME), round_trip(script.record())

    assert theirs.spans[0].reward.why == "x" * 16_384 + "... [1 more characters]"
    assert (theirs.truncated, ours.truncated) == (1, 0)
    assert ours.spans == script.spans


def test_events_are_messages_inside_their_span():
    row = otel(status={"code": 2, "message": "no"})
    row["events"] = [
        {
            "name": "exception",
            "timeUnixNano": "6",
            "attributes": [{"key": "exception.type", "value": {"stringValue": "E"}}],
        }
    ]
    row["links"] = [{"spanId": "ab"}]

    span, event = decode(body(row), sender=ME).spans

    assert (span.status, span.error) == ("error", "no")
    assert span.attributes["otel.links"] == [{"spanId": "ab"}]
    assert (event.kind, event.name, event.parent_id) == ("message", "exception", span.id)
    assert (event.start_ns, event.attributes) == (6, {"exception.type": "E"})


def test_identity_is_read_from_span_resource_or_sender_and_must_agree():
    resource = {"agl.rollout": "ro", "agl.attempt": "at"}

    assert len(decode(body(otel(), resource=resource)).spans) == 1
    assert len(decode(body(otel(agl__rollout="ro", agl__attempt="at"))).spans) == 1
    nobody = decode(body(otel()))
    assert nobody.spans == []
    assert "names no rollout" in nobody.refused[0]
    other = decode(body(otel(), resource=resource), sender=Sender(attempt_id="other"))
    assert "says agl.attempt 'at', but was sent by 'other'" in other.refused[0]


KINDS = ["stringValue", "boolValue", "intValue", "doubleValue", "bytesValue"]
KINDS += ["arrayValue", "kvlistValue"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["values", "key", "value"]), inner, max_size=3)
    ),
    max_leaves=6,
)
WRONG = [
    {"spanId": "12"},
    {"spanId": "0" * 16},
    {"spanId": None},
    {"parentSpanId": "x" * 16},
    {"name": None},
    {"endTimeUnixNano": "4"},
    {"startTimeUnixNano": "soon"},
    {"startTimeUnixNano": -5},
    {"startTimeUnixNano": str(2**70)},
    {"startTimeUnixNano": True},
    {"attributes": "x"},
    {"attributes": [{"value": {}}]},
    {"attributes": [{"key": "a", "value": {"x": 1}}]},
    {"attributes": [{"key": "a", "value": {"stringValue": 1}}]},
    {"attributes": [{"key": "a", "value": {"boolValue": 1}}]},
    {"attributes": [{"key": "a", "value": {"intValue": "1.5"}}]},
    {"attributes": [{"key": "a", "value": {"intValue": True}}]},
    {"attributes": [{"key": "a", "value": {"doubleValue": "x"}}]},
    {"attributes": [{"key": "a", "value": {"doubleValue": None}}]},
    {"attributes": [{"key": "a", "value": {"bytesValue": "?"}}]},
    {"attributes": [{"key": "a", "value": {"arrayValue": {"values": 1}}}]},
    {"attributes": [{"key": "a", "value": {"arrayValue": [1]}}]},
    {"attributes": [{"key": "a", "value": {"arrayValue": None}}]},
    {"attributes": [{"key": "a", "value": {"kvlistValue": "x"}}]},
    {"attributes": [{"key": "a", "value": {"doubleValue": 10**400}}]},
    {"attributes": [{"key": "a", "value": {"stringValue": "x", "intValue": "1"}}]},
    {"attributes": [{"key": "agl.kind", "value": {"stringValue": "cat"}}]},
    {"attributes": [{"key": "agl.kind", "value": {"stringValue": "reward"}}]},
    {"attributes": [{"key": "agl.call", "value": {"intValue": "1"}}]},
    {"attributes": [{"key": "agl.reward.value", "value": {"doubleValue": "NaN"}}]},
    {"attributes": [{"key": "agl.reward.value", "value": {"stringValue": "1"}}]},
    {
        "attributes": [
            {"key": "agl.reward.value", "value": {"doubleValue": 1}},
            {"key": "agl.reward.why", "value": {"intValue": "1"}},
        ]
    },
    {"status": {"code": 7}},
    {"status": "ok"},
    {"events": [{"name": 1}]},
    {"events": {}},
]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_a_malformed_span_is_refused_by_itself(wrong):
    found = decode(body(otel(1), {**otel(2), **wrong}, otel(3)), sender=ME)

    assert [span.id[-1] for span in found.spans] == ["1", "3"]
    assert found.sources == [0, 2]
    assert found.received == 3
    assert len(found.refused) == 1


@given(kind=st.sampled_from(KINDS), inner=JSON)
def test_any_typed_value_is_read_or_refused_by_itself(kind, inner):
    row = {**otel(1), "attributes": [{"key": "a", "value": {kind: inner}}]}

    found = decode(body(row, otel(2)), sender=ME)

    assert len(found.spans) + len(found.refused) == found.received == 2


def test_several_targets_of_a_reward_are_refused():
    row = otel(1, agl__reward__value=1.0, agl__reward__agent="a", agl__reward__call="c")

    assert "several targets" in decode(body(row), sender=ME).refused[0]


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        "x",
        {"resourceSpans": {}},
        {"resourceSpans": [1]},
        {"resourceSpans": [{"resource": 1}]},
        {"resourceSpans": [{"scopeSpans": [1]}]},
        {"resourceSpans": [{"scopeSpans": [{"spans": 1}]}]},
    ],
)
def test_what_is_no_request_is_refused_as_a_whole(wrong):
    with pytest.raises(Malformed):
        decode(wrong, sender=ME)


def test_nothing_is_a_request_without_spans():
    assert decode({}, sender=ME).received == 0
    assert decode(body(1), sender=ME).refused == ["span is not a mapping: 1"]
