"""The conversation of an attempt as rewards see it."""

from agl_core import semconv
from agl_core.interfaces import Usage, agent_calls
from agl_core.types import Choice, ModelCall, Span, SpanKind


def recorded(call_id, *, started_ns, agent="", text="", usage=None, **fields):
    call = ModelCall(
        id=call_id,
        rollout_id="r",
        attempt_id="a",
        agent=agent,
        started_ns=started_ns,
        complete=fields.pop("complete", True),
        choices=[Choice(text=text, finish_reason="stop")] if text else [],
        **fields,
    )
    return Span(
        id=f"gateway-{call_id}-{call.tries}",
        rollout_id="r",
        attempt_id="a",
        kind=SpanKind.LLM,
        name="chat",
        call_id=call_id,
        call=call,
        attributes=usage or {},
    )


def traced(call_id, agent):
    return Span(
        id=f"client-{call_id}",
        rollout_id="r",
        attempt_id="a",
        kind=SpanKind.LLM,
        name="chat",
        call_id=call_id,
        agent=agent,
    )


def test_calls_are_joined_in_the_order_in_which_they_were_sent():
    usage = {semconv.GEN_AI_USAGE_INPUT_TOKENS: 7, semconv.GEN_AI_USAGE_OUTPUT_TOKENS: 3}
    messages = [{"role": "user", "content": "q"}]
    spans = [
        recorded("c2", started_ns=2, agent="writer", text="second"),
        traced("c1", "planner"),
        recorded("c1", started_ns=1, text="first", messages=messages, usage=usage),
        traced("unsent", "planner"),
    ]

    first, second = agent_calls(spans)

    assert (first.agent, first.messages, first.answer) == ("planner", messages, "first")
    assert first.usage == Usage(prompt_tokens=7, completion_tokens=3)
    assert (first.finish_reason, first.error) == ("stop", "")
    assert (second.agent, second.answer, second.usage) == ("writer", "second", Usage())


def test_the_last_try_counts():
    spans = [
        recorded("c", started_ns=1, text="late", tries=2),
        recorded("c", started_ns=0, text="early", tries=1),
        recorded("d", started_ns=3, text="gone", superseded=True),
    ]

    assert [call.answer for call in agent_calls(spans)] == ["late"]


def test_a_call_without_an_answer_says_why():
    refused, cut = agent_calls(
        [
            recorded("a", started_ns=1, error="HTTP 503", status_code=503),
            recorded("b", started_ns=2, text="ha", complete=False),
        ]
    )

    assert (refused.answer, refused.finish_reason, refused.error) == ("", None, "HTTP 503")
    assert (cut.answer, cut.error) == ("ha", "the answer was cut off before its end")
