import math
from array import array

import msgspec
import pytest
from agl_testing.attempts import FROZEN, TRAINED, CallOptions, ScriptedAttempt

from agl_core import semconv
from agl_core.adapters import AgentSelector, join
from agl_core.errors import CaptureError, EmptyAnswerError, MissingTokensError, TokenMismatchError
from agl_core.types import AttemptStatus, Choice, Policy, Sampling, Span, SpanKind

replace = msgspec.structs.replace


SHOWN = {"role": "system", "content": [{"type": "text", "text": "See the image, file and audio."}]}


def joined(attempt, *, agents=("writer",), status=AttemptStatus.SUCCEEDED, policies=None):
    return join(
        attempt.record(status),
        agents=AgentSelector(agents),
        policies=policies or [TRAINED, FROZEN],
    )


def test_structure_comes_from_the_client_and_tokens_from_the_gateway():
    attempt = ScriptedAttempt()
    attempt.call(
        "writer",
        [1, 2],
        [3],
        options=CallOptions(run="run-1", parent="sp_node", framework="frame"),
    )
    (call,) = joined(attempt).calls
    assert (call.agent, call.agent_run_id) == ("writer", "run-1")
    assert call.call.prompt_token_ids.tolist() == [1, 2]
    assert call.trained


def test_a_call_known_by_its_url_alone_is_valid():
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2], options=CallOptions(traced=False))
    (call,) = joined(attempt).calls
    assert call.trained


def test_equal_texts_of_two_agents_stay_apart():
    attempt = ScriptedAttempt()
    first = attempt.call("planner", [1, 2], [3])
    second = attempt.call("writer", [1, 2], [3])
    speakers = {call.call.id: call.agent for call in joined(attempt).calls}
    assert speakers == {first: "planner", second: "writer"}


def test_the_framework_may_stand_on_an_ancestor():
    attempt = ScriptedAttempt()
    root = attempt.agent("writer")
    attempt.spans[-1] = replace(root, attributes={semconv.AGL_FRAMEWORK: "frame"})
    attempt.call("writer", [1], [], options=CallOptions(parent=root.id))
    with pytest.raises(MissingTokensError, match=r"recorded by frame"):
        joined(attempt)


def test_a_cycle_of_parents_ends():
    attempt = ScriptedAttempt()
    root = attempt.agent("writer")
    attempt.spans[-1] = replace(root, parent_id=root.id)
    attempt.call("writer", [1], [], options=CallOptions(parent=root.id))
    with pytest.raises(MissingTokensError) as caught:
        joined(attempt)
    assert "recorded by" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"prompt_token_ids": []}, MissingTokensError, "0 prompt ids"),
        ({"choices": []}, MissingTokensError, "0 choices"),
        ({"sampling": Sampling(n=2)}, TokenMismatchError, "asked for 2 choices"),
        ({"error": "ids are missing"}, TokenMismatchError, "ids are missing"),
        ({"error": "backend died", "complete": False}, CaptureError, "backend died"),
        ({"complete": False}, CaptureError, "cut off"),
        ({"policy": "other"}, CaptureError, "'other'"),
        ({"sampling": Sampling(temperature=0.0)}, CaptureError, "rollout.temperature"),
        (
            {"sampling": Sampling(temperature=0.5), "logprobs_mode": "raw"},
            CaptureError,
            "before temperature",
        ),
        *(
            ({"messages": [SHOWN, {"role": "user", "content": [part]}]}, CaptureError, words)
            for part, words in (
                ({"type": "image_url", "image_url": {"url": "data:"}}, "'image_url'.*placeholder"),
                ({"type": "input_audio", "input_audio": {"data": ""}}, "'input_audio'"),
                ({"type": "video_url", "video_url": {"url": ""}}, "'video_url'"),
                ({"type": "file", "file": {"file_id": "f"}}, "'file'.*do not train it"),
            )
        ),
    ],
)
def test_a_trained_call_must_be_exactly_true(fields, error, words):
    attempt = ScriptedAttempt()
    call_id = attempt.call("writer", [1], [2], **fields)
    with pytest.raises(error, match=words) as caught:
        joined(attempt)
    assert call_id in str(caught.value)
    assert "writer" in str(caught.value)


def test_parts_of_text_are_trained_on():
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2], messages=[SHOWN, {"role": "assistant", "content": None}])
    assert joined(attempt).calls[0].trained


def test_raw_logprobs_are_true_at_temperature_one():
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2], logprobs_mode="raw")
    assert joined(attempt).calls[0].trained


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 0.5])
def test_an_impossible_logprob_is_an_error(value):
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2])
    attempt.spans[-1].call.choices[0].logprobs[0] = value
    with pytest.raises(TokenMismatchError, match="log-probability"):
        joined(attempt)


def test_ids_without_logprobs_are_an_error():
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2])
    attempt.spans[-1].call.choices[0].logprobs[:] = array("d")
    with pytest.raises(MissingTokensError, match="no log-probabilities"):
        joined(attempt)


def test_two_choices_with_one_index_are_an_error():
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2], [3])
    call = attempt.spans[-1].call
    call.choices[1] = replace(call.choices[1], index=0)
    with pytest.raises(TokenMismatchError, match=r"\[0, 0\]"):
        joined(attempt)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_token_ids": []},
        {"complete": False},
        {"sampling": Sampling(temperature=0.0)},
        {"policy": "other"},
    ],
)
def test_an_untrained_call_may_be_anything(fields):
    attempt = ScriptedAttempt()
    attempt.call("planner", [1], [2], **fields)
    attempt.call("writer", [3], [4])
    assert [call.agent for call in joined(attempt).calls if call.trained] == ["writer"]


@pytest.mark.parametrize("mode", ["val", "test"])
def test_nobody_is_trained_outside_training(mode):
    attempt = ScriptedAttempt(mode=mode)
    attempt.call("writer", [], [])
    attempt.call("", [1], [2])
    attempt.capture_error("anything")
    result = joined(attempt)
    assert not any(call.trained for call in result.calls)
    assert result.seen == {"writer"}


def test_two_records_of_one_call_are_an_error():
    attempt = ScriptedAttempt()
    first = attempt.call("writer", [1], [2])
    attempt.call("writer", [1], [3], id=first, options=CallOptions(traced=False))
    with pytest.raises(CaptureError, match=f"{first}.*2 records"):
        joined(attempt)


def test_two_client_spans_of_one_call_are_an_error():
    attempt = ScriptedAttempt()
    first = attempt.call("writer", [1], [2])
    attempt.client_span("writer", call_id=first)
    with pytest.raises(CaptureError, match="two spans"):
        joined(attempt)


def test_recorders_that_name_two_agents_are_an_error():
    attempt = ScriptedAttempt()
    call_id = attempt.call("writer", [1], [2], options=CallOptions(traced=False))
    attempt.client_span("planner", call_id=call_id)
    with pytest.raises(CaptureError, match=r"planner.*writer"):
        joined(attempt)


def test_a_call_without_a_record_is_an_error():
    attempt = ScriptedAttempt()
    call_id = attempt.call("writer", [1], [2], options=CallOptions(captured=False))
    with pytest.raises(CaptureError, match=f"{call_id}.*no record"):
        joined(attempt)


def test_a_trained_call_that_passed_by_the_gateway_is_an_error():
    attempt = ScriptedAttempt()
    attempt.client_span("writer", call_id=None, options=CallOptions(framework="frame"))
    with pytest.raises(CaptureError, match=r"writer.*frame.*agl.current\(\).llm"):
        joined(attempt)


@pytest.mark.parametrize("agent", ["planner", "@summarizer"])
def test_an_untrained_call_may_pass_by_the_gateway(agent):
    attempt = ScriptedAttempt()
    attempt.client_span(agent, call_id=None)
    result = joined(attempt, agents=["w*"])
    assert not result.calls
    assert result.losses.counts == {}


def test_a_call_that_failed_before_it_left_is_counted():
    attempt = ScriptedAttempt()
    attempt.client_span("writer", call_id=None, status="error")
    assert joined(attempt).losses.counts == {"calls_unsent": 1}


@pytest.mark.parametrize("agent", ["planner", "@summarizer", ""])
@pytest.mark.parametrize("status", ["ok", "error"])
def test_an_untrained_call_without_a_record_is_counted(agent, status):
    """C4: a frozen agent's call that its program cancelled before it arrived."""
    attempt = ScriptedAttempt()
    attempt.client_span(agent, call_id="call_1", status=status)
    attempt.call("writer", [1], [2])
    result = joined(attempt, agents=["writer"])
    assert result.losses.counts == {"calls_unsent": 1}
    assert [call.agent for call in result.calls] == ["writer"]


def test_a_frozen_policy_or_an_untrainable_scope_needs_no_record():
    """C4: names that `agents` matches, whose calls are not trained all the same."""
    attempt = ScriptedAttempt()
    attempt.client_span(
        "writer", call_id="call_1", attributes={semconv.AGL_TRAINABLE: False}, status="error"
    )
    assert joined(attempt).losses.counts == {"calls_unsent": 1}


def test_a_trained_request_that_never_left_is_counted():
    """C4: a pool timeout that the program handles."""
    attempt = ScriptedAttempt()
    never_left = {semconv.AGL_REQUESTS: 2, semconv.AGL_UNSENT: 2}
    attempt.client_span("writer", call_id="call_1", attributes=never_left, status="error")
    assert joined(attempt).losses.counts == {"calls_unsent": 2}


def test_tries_that_never_arrived_are_counted_beside_the_one_that_did():
    attempt = ScriptedAttempt()
    options = CallOptions(traced=False)
    call_id = attempt.call("writer", [1], [2], options=options)
    attempt.client_span("writer", call_id=call_id, attributes={semconv.AGL_REQUESTS: 3})
    result = joined(attempt)
    assert len(result.calls) == 1
    assert result.losses.counts == {"calls_unsent": 2}


def test_an_evaluation_counts_what_never_arrived():
    attempt = ScriptedAttempt(mode="val")
    attempt.client_span("writer", call_id="call_1", status="error")
    assert joined(attempt).losses.counts == {"calls_unsent": 1}


def test_an_untrained_call_that_is_not_exact_is_counted():
    """C4: two requests in one call of a frozen agent, and two records of one call."""
    attempt = ScriptedAttempt()
    call_id = attempt.call("planner", [1], [2])
    attempt.call("planner", [1], [9], id=call_id, options=CallOptions(traced=False))
    attempt.capture_error("second send in a call scope", call_id=call_id)
    attempt.spans[-1] = msgspec.structs.replace(attempt.spans[-1], agent="planner")
    result = joined(attempt, agents=["writer"])
    assert result.losses.counts == {"calls_inexact": 2}


def test_a_note_of_a_recorder_drops_the_attempt():
    attempt = ScriptedAttempt()
    call_id = attempt.call("writer", [1], [2])
    attempt.capture_error("second send in a call scope", call_id=call_id)
    with pytest.raises(CaptureError, match=f"{call_id}.*second send in a call scope"):
        joined(attempt)


def test_tokens_without_an_agent_are_an_error():
    attempt = ScriptedAttempt()
    attempt.call("", [1], [2])
    with pytest.raises(CaptureError, match="agent_scope"):
        joined(attempt)


def test_a_call_of_nobody_without_tokens_is_counted():
    attempt = ScriptedAttempt()
    attempt.call("", [], [], trainable=False)
    assert joined(attempt).losses.counts == {"calls_without_agent": 1}


def test_superseded_tries_are_dropped_and_counted():
    attempt = ScriptedAttempt()
    call_id = attempt.call("writer", [1], [2], tries=3)
    for _ in range(2):
        attempt.call(
            "writer", [1], [9], id=call_id, superseded=True, options=CallOptions(traced=False)
        )
    result = joined(attempt)
    assert [call.call.choices[0].token_ids.tolist() for call in result.calls] == [[2]]
    assert result.losses.counts == {"superseded_tries": 2}


def test_the_last_try_is_the_record_even_if_an_earlier_one_was_written_before():
    attempt = ScriptedAttempt()
    call_id = attempt.call("writer", [1], [9])
    attempt.call("writer", [1], [2], id=call_id, tries=2, options=CallOptions(traced=False))
    result = joined(attempt)
    assert [call.call.choices[0].token_ids.tolist() for call in result.calls] == [[2]]
    assert result.losses.counts == {"superseded_tries": 1}


def test_a_call_whose_last_try_never_arrived_is_dropped():
    attempt = ScriptedAttempt()
    call_id = attempt.call("writer", [1], [2], superseded=True)
    result = joined(attempt)
    assert not result.calls
    assert result.dropped == {call_id: "writer"}


def test_a_refused_call_is_no_sample():
    attempt = ScriptedAttempt()
    call_id = attempt.call("writer", [], [], status_code=400, error="too long", complete=False)
    result = joined(attempt)
    assert result.dropped == {call_id: "writer"}
    assert result.losses.counts == {"calls_refused": 1}


def test_an_agent_none_of_whose_prompts_fit_is_told():
    attempt = ScriptedAttempt()
    too_long = {"status_code": 400, "error": "HTTP 400: maximum context length", "complete": False}
    attempt.call("planner", [], [], **too_long)
    attempt.call("writer", [], [], **too_long)
    attempt.call("writer", [1], [2])
    attempt.call("judge", [], [], **too_long, trainable=False)
    result = joined(attempt, agents=("*",))
    assert result.overflowed == {"planner": "HTTP 400: maximum context length"}
    assert result.losses.counts == {"calls_overflowed": 3}


@pytest.mark.parametrize(
    "status", [AttemptStatus.TIMED_OUT, AttemptStatus.FAILED, AttemptStatus.CANCELLED]
)
def test_a_failed_attempt_may_leave_a_call_unfinished(status):
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2])
    attempt.call("writer", [1, 2, 3], [4], complete=False)
    result = joined(attempt, status=status)
    assert [call.call.prompt_token_ids.tolist() for call in result.calls] == [[1]]
    assert result.losses.counts == {"calls_incomplete": 1}


def test_frozen_policies_and_untrainable_scopes_are_counted():
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2], policy="frozen")
    attempt.call("writer", [1], [2], trainable=False)
    result = joined(attempt)
    assert not any(call.trained for call in result.calls)
    assert result.losses.counts == {"calls_untrainable": 2}


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"status_code": 500}, "calls_refused"),
        ({"complete": False}, "calls_incomplete"),
        ({"superseded": True}, "superseded_tries"),
    ],
)
@pytest.mark.parametrize("untrainable", [{"policy": "frozen"}, {"trainable": False}])
def test_an_untrainable_call_without_an_answer_is_counted_once(fields, cause, untrainable):
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2], **fields, **untrainable)
    assert joined(attempt).losses.counts == {cause: 1}


def test_reserved_names_are_never_trained():
    attempt = ScriptedAttempt()
    attempt.call("@selector", [], [])
    policies = [Policy(name="trained", agents=("*",), trainable=True)]
    (call,) = joined(attempt, agents=["*"], policies=policies).calls
    assert not call.trained


def test_the_span_of_another_attempt_is_an_error():
    attempt = ScriptedAttempt()
    attempt.spans.append(ScriptedAttempt("2").agent("writer"))
    with pytest.raises(CaptureError, match="at_2"):
        joined(attempt)


def test_calls_are_numbered_per_agent_and_run():
    attempt = ScriptedAttempt()
    for agent, run in [("a", "r1"), ("b", "r2"), ("a", "r3"), ("a", "r1")]:
        attempt.call(agent, [1], [2], options=CallOptions(run=run))
    numbers = [(call.agent, call.ordinal, call.run_ordinal) for call in joined(attempt).calls]
    assert numbers == [("a", 0, 0), ("b", 0, 0), ("a", 1, 1), ("a", 2, 0)]


def _order(attempt):
    return [call.call.prompt_token_ids[0] for call in joined(attempt).calls]


def test_one_clients_sequence_orders_calls_whatever_the_clock_said():
    attempt = ScriptedAttempt()
    attempt.call("a", [1], [9], started_ns=2_000)
    attempt.call("a", [2], [9], started_ns=1_000)
    attempt.spans.reverse()
    assert _order(attempt) == [1, 2]


def test_the_gateways_clock_orders_what_several_recorders_numbered():
    attempt = ScriptedAttempt()
    attempt.call("a", [1], [9], started_ns=3_000)
    attempt.call("a", [2], [9], started_ns=2_000)
    attempt.call("a", [3], [9], started_ns=1_000, options=CallOptions(traced=False))
    assert _order(attempt) == [3, 2, 1]
    attempt.spans = [replace(span, sequence=1) for span in attempt.spans]
    assert _order(attempt) == [3, 2, 1]


def test_equal_times_have_one_stable_order():
    attempt = ScriptedAttempt()
    for number in range(3):
        attempt.call("a", [number], [9], started_ns=7, options=CallOptions(traced=False))
    expected = _order(attempt)
    attempt.spans.reverse()
    assert _order(attempt) == expected


def test_everybody_who_ran_was_seen():
    attempt = ScriptedAttempt()
    attempt.agent("planner", run="r1")
    attempt.call("writer", [1], [2])
    attempt.call("judge", [], [], status_code=500)
    tool = Span(
        id="sp_tool", rollout_id="ro_1", attempt_id="at_1", kind=SpanKind.TOOL, name="t", agent="x"
    )
    attempt.spans.append(tool)
    result = joined(attempt)
    assert result.seen == {"planner", "writer", "judge", "x"}
    assert result.runs == {("planner", "r1")}


def test_an_agent_inside_a_tool_is_not_the_outer_agent():
    attempt = ScriptedAttempt()
    attempt.call("outer", [1], [2])
    tool = attempt.agent("inner")
    for prompt in ([3], [4]):
        attempt.call("inner", prompt, [5], options=CallOptions(parent=tool.id))
    attempt.call("outer", [6], [7])
    calls = joined(attempt, agents=["outer"]).calls
    assert [call.call.prompt_token_ids.tolist() for call in calls if call.trained] == [[1], [6]]
    assert len(calls) == 4


def test_flat_spans_join_like_nested_ones():
    nested, flat = ScriptedAttempt(), ScriptedAttempt()
    root = nested.agent("writer")
    for prompt in ([1], [2]):
        nested.call("writer", prompt, [9], options=CallOptions(parent=root.id))
    for prompt in ([1], [2]):
        flat.call("writer", prompt, [9])
    flat.agent("writer")

    def tokens(attempt):
        return [
            (call.agent, call.ordinal, call.call.prompt_token_ids, call.call.choices[0].token_ids)
            for call in joined(attempt).calls
        ]

    assert tokens(nested) == tokens(flat)


@pytest.mark.parametrize("where", ["prompt", "answer"])
@pytest.mark.parametrize("wrong", [-1, -(2**31)])
def test_an_id_that_no_vocabulary_has_is_an_error(where, wrong):
    """Below 0 it would be the mark of an image; `Choice` itself refuses what is beyond 32 bits."""
    attempt = ScriptedAttempt()
    prompt, answer = ([1, wrong], [2]) if where == "prompt" else ([1], [2, wrong])
    attempt.call("writer", prompt, answer)
    with pytest.raises(TokenMismatchError, match=f"writer.*token id {wrong}:"):
        joined(attempt)


@pytest.mark.parametrize("value", [-9999.0, -104.5, float("nan"), -math.inf])
def test_a_stand_in_for_a_logprob_is_an_error(value):
    """A4: -9999.0 is what servers write for minus infinity; no sampler draws such a token."""
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2], choices=[Choice(token_ids=[2], logprobs=[value])])
    with pytest.raises(TokenMismatchError, match="log-probability of"):
        joined(attempt)


def test_an_answer_without_a_token_has_an_error_of_its_own():
    """C8: an empty completion of a backend that does return ids."""
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [])
    with pytest.raises(EmptyAnswerError, match=r"writer.*ended its answer before the first token"):
        joined(attempt)


def test_an_answer_with_text_and_no_ids_still_misses_them():
    """C8: only an answer that says nothing is empty."""
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [], choices=[Choice(text="hi", finish_reason="stop")])
    with pytest.raises(MissingTokensError, match="carries no token ids") as raised:
        joined(attempt)
    assert not isinstance(raised.value, EmptyAnswerError)


CONSTRAINED = Sampling(extra={"response_format": {"type": "json_object"}})


def test_a_constrained_call_is_left_out_and_counted():
    """C11: its log-probabilities are those of another distribution."""
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2], sampling=CONSTRAINED)
    attempt.call("writer", [3], [4])
    result = joined(attempt)
    assert [call.trained for call in result.calls] == [False, True]
    assert result.losses.counts == {"calls_constrained": 1}


def test_a_policy_may_train_on_constrained_calls():
    """C11: only where the policy says so."""
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2], sampling=CONSTRAINED)
    policy = msgspec.structs.replace(TRAINED, train_constrained=True)
    result = joined(attempt, policies=[policy])
    assert [call.trained for call in result.calls] == [True]
    assert result.losses.counts == {}
