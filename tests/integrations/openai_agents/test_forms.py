"""Handoffs, agents as tools, streams, guardrails and retries: who speaks, and under what."""

import asyncio

import openai
import pytest
from agents import (
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelRetrySettings,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    custom_span,
    function_tool,
    handoff,
    input_guardrail,
    retry_policies,
    trace,
)
from agl_testing._captured import ancestors, check_identity, check_tokens, triplets
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, JUDGE, PLANNER, TOOL_RESULT, WRITER

from agl_core import semconv
from agl_core.tracing import agent_scope
from agl_core.types import SpanKind

EVERYTHING = ("agent", "llm", "tool", "message", "operation")


@function_tool
def lookup(item: str) -> str:
    """Look up what an item costs."""
    return TOOL_RESULT


def asking(arguments):
    """A model that calls its first tool until it has a result, then answers."""

    def script(body):
        tools = body.get("tools") or ()
        if tools and body["messages"][-1]["role"] != "tool":
            name = tools[0]["function"]["name"]
            return FakeReply(tool_calls=[{"name": name, "arguments": arguments}])
        return FakeReply(text=ANSWER)

    return script


def speakers(played, names=None):
    if played.error is not None:
        raise played.error
    check_identity(played, names=names)
    return [call.agent for call in played.calls]


async def streamed(agent, text):
    result = Runner.run_streamed(agent, text)
    events = [event.type async for event in result.stream_events()]
    assert "raw_response_event" in events
    return result.final_output


async def whole(agent, text):
    return (await Runner.run(agent, text)).final_output


FORMS = pytest.mark.parametrize("run", [whole, streamed])


@FORMS
@pytest.mark.parametrize("model", ["chat", "responses"])
async def test_a_handoff_ends_one_agent_and_begins_the_other(bench, agent, tree, run, model):
    fields = {"model": OpenAIResponsesModel} if model == "responses" else {}

    async def program(job):
        writer = agent(job, WRITER, tools=[lookup], **fields)
        return await run(agent(job, PLANNER, handoffs=[writer], **fields), job.question)

    played = await bench.one(program)
    assert speakers(played) == [PLANNER, WRITER]
    check_tokens(played, bench.fake.log)
    asked = WRITER + "@0" if model == "chat" else "response"
    assert tree(played.spans, *EVERYTHING) == [
        "agent planner planner",
        f". llm {asked.replace(WRITER, PLANNER)} planner",
        ". message handoff planner",
        "agent writer writer",
        f". llm {asked} writer",
    ]
    (message,) = [span for span in played.spans if span.name == "handoff"]
    assert message.attributes[semconv.AGL_HANDOFF_FROM] == PLANNER
    assert message.attributes[semconv.AGL_HANDOFF_TO] == WRITER
    assert [each.agent for each in triplets(played, "*")] == [PLANNER, WRITER]


async def test_an_agent_that_is_handed_back_to_runs_anew(bench, agent):
    answers = [*[asking({})] * 2, lambda _: ANSWER]
    bench.fake.script = lambda body: answers.pop(0)({**body, "messages": [{"role": "user"}]})

    async def program(job):
        writer = agent(job, WRITER)
        planner = agent(job, PLANNER, handoffs=[writer])
        writer.handoffs = [planner]
        return await whole(planner, job.question)

    played = await bench.one(program)
    assert speakers(played) == [PLANNER, WRITER, PLANNER]
    assert len({call.agent_run_id for call in played.calls}) == 3


@FORMS
async def test_an_agent_as_a_tool_hangs_under_the_tool(bench, agent, tree, run):
    bench.fake.script = asking({"input": "tea"})

    async def program(job):
        told = []
        ask = agent(job, WRITER).as_tool("ask", "Ask the writer.", on_stream=told.append)
        text = await run(agent(job, PLANNER, tools=[ask]), job.question)
        assert told
        return text

    played = await bench.one(program)
    assert speakers(played) == [PLANNER, WRITER, PLANNER]
    check_tokens(played, bench.fake.log)
    assert tree(played.spans, "agent", "llm", "tool") == [
        "agent planner planner",
        ". llm planner@0 planner",
        ". tool ask planner",
        ". . agent writer writer",
        ". . . llm writer@0 writer",
        ". llm planner@0 planner",
    ]
    (tool,) = [span for span in played.spans if span.kind is SpanKind.TOOL]
    assert tool.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == {"input": "tea"}
    assert tool.attributes[semconv.GEN_AI_TOOL_RESULT] == ANSWER


async def test_an_agent_that_asks_itself_in_a_tool_runs_anew(bench, agent):
    bench.fake.script = asking({"input": "tea"})

    async def program(job):
        ask = agent(job, PLANNER).as_tool("ask", "Ask another of my kind.")
        return await whole(agent(job, PLANNER, tools=[ask]), job.question)

    played = await bench.one(program)
    assert speakers(played) == [PLANNER] * 3
    first, inner, last = (call.agent_run_id for call in played.calls)
    assert first == last != inner


async def test_one_agent_in_several_runs_at_once_never_mixes(bench, agent):
    bench.interleave(4)

    async def program(job):
        writer = agent(job, WRITER)
        return await asyncio.gather(*(whole(writer, f"{job.question} {n}") for n in range(4)))

    played = await bench.one(program)
    assert speakers(played) == [WRITER] * 4
    check_tokens(played, bench.fake.log)
    assert len({call.agent_run_id for call in played.calls}) == 4


async def test_parallel_tools_keep_their_agents(bench, agent):
    """Two calls of an agent-tool in one turn run at the same time."""

    def script(body):
        if body.get("tools") and body["messages"][-1]["role"] != "tool":
            name = body["tools"][0]["function"]["name"]
            asked = [{"name": name, "arguments": {"input": item}} for item in ("tea", "milk")]
            return FakeReply(tool_calls=asked)
        return FakeReply(text=ANSWER)

    bench.fake.script = script

    async def program(job):
        ask = agent(job, WRITER).as_tool("ask", "Ask the writer.")
        return await whole(agent(job, PLANNER, tools=[ask]), job.question)

    played = await bench.one(program)
    assert speakers(played) == [PLANNER, WRITER, WRITER, PLANNER]
    tools = [span for span in played.spans if span.kind is SpanKind.TOOL]
    spans = check_identity(played)
    around = [
        next(each for each in ancestors(played.spans, spans[call.id]) if each in tools).id
        for call in played.calls
        if call.agent == WRITER
    ]
    assert set(around) == {tool.id for tool in tools}


@pytest.mark.parametrize("where", ["guardrail", "handoff"])
async def test_a_model_beside_the_agent_is_nobody(bench, agent, where):
    async def ask_judge(job):
        async with openai.AsyncOpenAI(base_url=job.base_url, api_key=job.api_key) as client:
            messages = [{"role": "user", "content": "good?"}]
            await client.chat.completions.create(model=job.model(JUDGE), messages=messages)

    async def program(job):
        @input_guardrail
        async def check(context, agent, text):
            await ask_judge(job)
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

        writer = agent(job, WRITER)
        if where == "guardrail":
            return await whole(agent(job, WRITER, input_guardrails=[check]), job.question)
        hand = handoff(writer, on_handoff=lambda context: ask_judge(job))
        return await whole(agent(job, PLANNER, handoffs=[hand]), job.question)

    played = await bench.one(program)
    assert JUDGE not in speakers(played, {JUDGE: None})
    assert "" in [call.agent for call in played.calls]


async def test_an_agent_of_a_guardrail_speaks_for_itself_while_the_other_waits(bench, agent, tree):
    async def program(job):
        @input_guardrail
        async def check(context, asked, text):
            await whole(agent(job, JUDGE), text)
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

        bench.interleave(2)
        return await whole(agent(job, WRITER, input_guardrails=[check]), job.question)

    played = await bench.one(program)
    assert sorted(speakers(played)) == [JUDGE, WRITER]
    assert {"agent writer writer", ". operation check writer", ". . agent judge judge"} <= set(
        tree(played.spans, "agent", "operation")
    )


async def test_a_guardrail_that_trips_fails_the_agent_not_the_judge(bench, agent):
    async def program(job):
        @input_guardrail(run_in_parallel=False)
        async def check(context, asked, text):
            await whole(agent(job, JUDGE), text)
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

        return await whole(agent(job, WRITER, input_guardrails=[check]), job.question)

    played = await bench.one(program)
    assert isinstance(played.error, InputGuardrailTripwireTriggered)
    status = {span.agent: span.status for span in played.spans if span.kind is SpanKind.AGENT}
    assert status == {WRITER: "error", JUDGE: "ok"}


async def test_retries_of_the_client_are_one_call(bench, agent):
    bench.fake.fail(1, status=503)

    async def program(job):
        return await whole(agent(job, WRITER), job.question)

    played = await bench.one(program)
    assert {call.id for call in played.calls if not call.superseded} == {played.calls[0].id}
    assert [call.status_code for call in played.calls] == [503, 200]
    assert len([span for span in played.spans if span.kind is SpanKind.LLM]) == 1
    assert len(triplets(played, WRITER)) == 1


async def test_retries_of_the_runner_count_once(bench, agent):
    bench.fake.fail(1, status=503)
    policy = retry_policies.http_status([503])
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=2, policy=policy))

    async def program(job):
        return await whole(agent(job, WRITER, model_settings=settings), job.question)

    played = await bench.one(program)
    if played.error is not None:
        raise played.error
    assert [call.status_code for call in played.calls] == [503, 200]
    assert len(triplets(played, WRITER)) == 1


async def test_spans_and_scopes_of_the_users_stand_where_they_were_opened(bench, agent, tree):
    async def program(job):
        with trace("shop"), custom_span("open", {"door": "left"}):
            with agent_scope(JUDGE, trainable=False):
                await whole(agent(job, WRITER), job.question)
            return await whole(agent(job, PLANNER), job.question)

    played = await bench.one(program)
    assert speakers(played) == [WRITER, PLANNER]
    assert [call.trainable for call in played.calls] == [False, True]
    assert tree(played.spans, "agent", "operation") == [
        "operation open -",
        ". agent judge judge",
        ". . agent writer writer",
        ". agent planner planner",
    ]
    assert played.spans[0].attributes[semconv.AGL_OBJECT] == {"door": "left"}


async def test_a_scope_in_a_tool_names_who_speaks_there(bench, agent):
    async def program(job):
        @function_tool
        async def review(item: str) -> str:
            """Ask the judge."""
            async with openai.AsyncOpenAI(base_url=job.base_url, api_key=job.api_key) as client:
                messages = [{"role": "user", "content": item}]
                with agent_scope(JUDGE):
                    await client.chat.completions.create(model=job.model(JUDGE), messages=messages)
            return "good"

        return await whole(agent(job, PLANNER, tools=[review]), job.question)

    played = await bench.one(program)
    assert speakers(played) == [PLANNER, JUDGE, PLANNER]


async def test_usage_and_model_are_on_the_spans(bench, agent):
    async def program(job):
        await whole(agent(job, WRITER), job.question)
        await streamed(agent(job, WRITER), job.question)
        return await whole(agent(job, WRITER, model=OpenAIResponsesModel), job.question)

    played = await bench.one(program)
    spans = check_identity(played)
    for call in played.calls[::2]:
        attributes = spans[call.id].attributes
        assert attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] == len(call.prompt_token_ids)
        assert attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == len(call.choices[0].token_ids)
    first, _, last = (spans[call.id].attributes for call in played.calls)
    assert first[semconv.GEN_AI_REQUEST_MODEL] == "writer@0"
    assert last[semconv.GEN_AI_RESPONSE_ID] == played.calls[-1].response_id


async def test_a_conversation_goes_on_from_the_tokens_of_before(bench, agent):
    """Two turns of one agent with a tool: the second prompt extends the first, token by token."""

    async def program(job):
        result = await Runner.run(agent(job, WRITER, tools=[lookup]), job.question)
        return result.to_input_list()

    played = await bench.one(program)
    assert speakers(played) == [WRITER, WRITER]
    first, second = triplets(played, WRITER)
    assert (first.agent_run_id, second.ordinal) == (second.agent_run_id, first.ordinal + 1)


async def test_what_a_reader_of_a_stream_does_is_not_the_agents(bench, agent):
    """Between two events the reader runs, and whatever it sends is its own."""

    async def program(job):
        async with openai.AsyncOpenAI(base_url=job.base_url, api_key=job.api_key) as client:
            result = Runner.run_streamed(agent(job, WRITER), job.question)
            async for event in result.stream_events():
                if event.type == "agent_updated_stream_event":
                    messages = [{"role": "user", "content": "good?"}]
                    await client.chat.completions.create(model=job.model(JUDGE), messages=messages)
                    with agent_scope(PLANNER):
                        await client.chat.completions.create(
                            model=job.model(PLANNER), messages=messages
                        )

    played = await bench.one(program)
    assert sorted(speakers(played, {JUDGE: None})) == ["", PLANNER, WRITER]


async def test_a_run_that_waits_for_approval_goes_on_where_it_stopped(bench, agent, tree):
    @function_tool(needs_approval=True)
    def buy(item: str) -> str:
        """Buy an item."""
        return "bought"

    async def program(job):
        planner = agent(job, PLANNER, tools=[buy])
        asked = await Runner.run(planner, job.question)
        state = asked.to_state()
        for interruption in asked.interruptions:
            state.approve(interruption)
        return (await Runner.run(planner, state)).final_output

    played = await bench.one(program)
    assert speakers(played) == [PLANNER, PLANNER]
    assert played.output == ANSWER
    assert {span.status for span in played.spans} == {"ok"}
    tools = [span for span in played.spans if span.kind is SpanKind.TOOL]
    assert tools[-1].attributes[semconv.GEN_AI_TOOL_RESULT] == "bought"
    assert [each.agent for each in triplets(played, PLANNER)] == [PLANNER, PLANNER]


async def test_too_many_turns_end_the_agent_as_an_error(bench, agent):
    async def program(job):
        planner = agent(job, PLANNER, tools=[lookup])
        return await Runner.run(planner, job.question, max_turns=1)

    played = await bench.one(program)
    assert isinstance(played.error, MaxTurnsExceeded)
    (ended,) = [span for span in played.spans if span.kind is SpanKind.AGENT]
    assert ended.error.startswith("MaxTurnsExceeded")


async def test_a_session_hands_the_history_on(bench, agent):
    session = SQLiteSession("shop")

    async def program(job):
        for text in (job.question, "and milk?"):
            await Runner.run(agent(job, WRITER), text, session=session)

    played = await bench.one(program)
    session.close()
    assert speakers(played) == [WRITER, WRITER]
    assert [len(call.messages) for call in played.calls] == [2, 4]
