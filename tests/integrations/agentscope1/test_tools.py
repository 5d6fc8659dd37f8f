"""Tools of every form: what they were given, what they gave, and what they raised."""

import asyncio

import pytest
from agentscope.message import TextBlock
from agentscope.tool import Toolkit, ToolResponse
from agl_agentscope._checks import pitfalls
from agl_testing._captured import check_identity
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, JUDGE, PLANNER, TOOL, TOOL_RESULT

from agl_core import semconv
from agl_core.types import SpanKind

from .programs import Price, agent, lookup, models, reply, since, text_result, user


def tools_of(played):
    return [span for span in played.spans if span.kind is SpanKind.TOOL]


def asking(*tools, **fields):
    async def program(job):
        async with models(job) as model:
            return await reply(agent(model, PLANNER, *tools, **fields), job.question)

    return program


def use(name):
    return {"type": "tool_use", "id": "1", "name": name, "input": {"item": "tea"}}


def plain(item: str) -> ToolResponse:
    """Look up.

    Args:
        item (str): the item
    """
    return text_result(TOOL_RESULT)


def pieces(item: str):
    """Look up.

    Args:
        item (str): the item
    """
    for end in (1, len(TOOL_RESULT)):
        yield text_result(TOOL_RESULT[:end])


async def apieces(item: str):
    """Look up.

    Args:
        item (str): the item
    """
    for chunk in pieces(item):
        yield chunk


@pytest.mark.parametrize("tool", [plain, lookup, pieces, apieces])
async def test_every_form_of_a_tool_is_recorded(bench, tool):
    played = await bench.one(asking(tool))
    assert (played.output, played.error) == (ANSWER, None)
    (span,) = tools_of(played)
    assert (span.name, span.status, span.agent) == (tool.__name__, "ok", PLANNER)
    assert span.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == {"item": "tea"}
    assert span.attributes[semconv.GEN_AI_TOOL_RESULT] == TOOL_RESULT
    sent = played.calls[0].choices[0].tool_calls[0]["id"]
    assert span.attributes[semconv.GEN_AI_TOOL_CALL_ID] == sent


def failing(item: str) -> ToolResponse:
    """Look up.

    Args:
        item (str): the item
    """
    raise KeyError(item)


async def afailing(item: str) -> ToolResponse:
    """Look up.

    Args:
        item (str): the item
    """
    raise KeyError(item)


@pytest.mark.parametrize("tool", [failing, afailing])
async def test_what_a_tool_raises_is_told_to_the_model_and_recorded_as_it_is(bench, tool):
    played = await bench.one(asking(tool))
    assert (played.output, played.error) == (ANSWER, None)
    assert "Error: 'tea'" in str(played.calls[1].messages)
    (span,) = tools_of(played)
    assert (span.status, span.error) == ("error", "KeyError: 'tea'")
    assert span.attributes[semconv.EXCEPTION_TYPE] == "builtins.KeyError"
    assert span.attributes[semconv.GEN_AI_TOOL_RESULT] == "Error: 'tea'"
    assert span.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == {"item": "tea"}


async def test_words_that_look_like_an_error_are_none(bench):
    async def cautious(item: str) -> ToolResponse:
        """Look up.

        Args:
            item (str): the item
        """
        return text_result("Error: none found")

    played = await bench.one(asking(cautious))
    (span,) = tools_of(played)
    assert (span.status, span.attributes[semconv.GEN_AI_TOOL_RESULT]) == ("ok", "Error: none found")


def calling(name):
    """The model calls a tool of this name once, then says the answer."""

    def script(body):
        if body["messages"][-1]["role"] != "tool":
            return FakeReply(tool_calls=[{"name": name, "arguments": "{}"}])
        return FakeReply(text=ANSWER)

    return script


def is_unreached(played, name, words):
    """The one call of a tool came to none, and says so as the agent's."""
    (speaker,) = [span for span in played.spans if span.kind is SpanKind.AGENT]
    (span,) = tools_of(played)
    assert (played.output, played.error) == (ANSWER, None)
    assert (span.name, span.status, words in span.error) == (name, "error", True)
    assert (span.parent_id, span.agent) == (speaker.id, PLANNER)
    assert span.agent_run_id == played.calls[0].agent_run_id
    assert span.attributes[semconv.GEN_AI_TOOL_RESULT] == span.error


async def test_a_tool_that_nobody_has_is_a_failed_one(bench):
    bench.fake.script = calling("missing")
    played = await bench.one(asking(lookup))
    is_unreached(played, "missing", "Cannot find")
    findings = {each.check: each for each in pitfalls([played.record], None)}
    assert findings["agentscope.tools"].figures["failed"] == 1


async def test_a_tool_that_is_switched_off_is_a_failed_one(bench):
    async def program(job):
        async with models(job) as model:
            planner = agent(model, PLANNER)
            planner.toolkit.create_tool_group("prices", "what costs what", active=False)
            planner.toolkit.register_tool_function(lookup, group_name="prices")
            return await reply(planner, job.question)

    bench.fake.script = calling(TOOL)
    is_unreached(await bench.one(program), TOOL, "inactive")


async def test_a_tool_that_gives_such_words_itself_has_not_failed(bench):
    def finds(item: str = "") -> ToolResponse:
        """Look up.

        Args:
            item (str): the item
        """
        return text_result("FunctionNotFoundError is what it says")

    bench.fake.script = calling("finds")
    (span,) = tools_of(await bench.one(asking(finds)))
    assert span.status == "ok"


async def test_arguments_that_are_no_json_reach_the_tool_as_the_framework_mends_them(bench):
    def script(body):
        if body["messages"][-1]["role"] != "tool":
            return FakeReply(tool_calls=[{"name": "guess", "arguments": "{no json"}])
        return FakeReply(text=ANSWER)

    async def guess(item: str = "nothing") -> ToolResponse:
        """Guess.

        Args:
            item (str): the item
        """
        return text_result(item)

    bench.fake.script = script
    played = await bench.one(asking(guess))
    assert (played.output, played.error) == (ANSWER, None)
    (span,) = tools_of(played)
    assert span.name == "guess"


async def test_an_output_of_ten_megabytes_is_cut_in_the_record_alone(bench):
    async def big(item: str) -> ToolResponse:
        """Give much.

        Args:
            item (str): the item
        """
        return text_result("x" * 10_000_000)

    async def program(job):
        async with models(job) as model:
            toolkit = agent(model, PLANNER, big).toolkit
            (chunk,) = [chunk async for chunk in await toolkit.call_tool_function(use("big"))]
            await reply(agent(model, PLANNER), job.question)
            return len(chunk.content[0]["text"])

    played = await bench.one(program)
    assert (played.output, played.error) == (10_000_000, None)
    assert len(tools_of(played)) == 1
    assert sum(len(str(span.attributes)) for span in played.spans) < 1_000_000


@pytest.mark.parametrize("parallel", [False, True])
async def test_several_tools_of_one_answer_have_a_span_each(bench, parallel):
    def script(body):
        if body["messages"][-1]["role"] != "tool":
            call = {"name": TOOL, "arguments": '{"item": "tea"}'}
            return FakeReply(tool_calls=[call, call, call])
        return FakeReply(text=ANSWER)

    bench.fake.script = script
    played = await bench.one(asking(lookup, parallel_tool_calls=parallel))
    assert played.output == ANSWER
    spans = tools_of(played)
    assert [span.agent for span in spans] == [PLANNER] * 3
    assert len({span.attributes[semconv.GEN_AI_TOOL_CALL_ID] for span in spans}) == 3
    assert {span.attributes[semconv.GEN_AI_TOOL_RESULT] for span in spans} == {TOOL_RESULT}
    assert [call.agent for call in played.calls] == [PLANNER, PLANNER]


async def test_a_finishing_tool_is_ended_with_its_result(bench):
    async def program(job):
        async with models(job) as model:
            answer = await agent(model, PLANNER)(user(job.question), structured_model=Price)
            return answer.metadata

    played = await bench.one(program)
    assert played.output == {"item": "tea"}
    spans = tools_of(played)
    assert {(span.name, span.status) for span in spans} == {("generate_response", "ok")}
    assert "Successfully" in spans[0].attributes[semconv.GEN_AI_TOOL_RESULT]
    check_identity(played)


async def test_structured_output_that_does_not_fit_is_asked_for_again(bench):
    answers = iter(['{"price": 4}', '{"item": "tea"}'])

    def script(body):
        if body["tool_choice"] == "required":
            call = {"name": "generate_response", "arguments": next(answers)}
            return FakeReply(tool_calls=[call])
        return FakeReply(text=ANSWER)

    bench.fake.script = script

    async def program(job):
        async with models(job) as model:
            answer = await agent(model, PLANNER)(user(job.question), structured_model=Price)
            return answer.metadata

    played = await bench.one(program)
    assert (played.output, played.error) == ({"item": "tea"}, None)
    first, second = tools_of(played)
    assert "Arguments Validation Error" in first.attributes[semconv.GEN_AI_TOOL_RESULT]
    assert "Successfully" in second.attributes[semconv.GEN_AI_TOOL_RESULT]
    check_identity(played)


@since(hasattr(Toolkit, "register_middleware"), "middleware of toolkits")
async def test_middleware_of_a_toolkit_sees_the_tool_as_it_is(bench):
    seen = []

    async def middleware(kwargs, next_handler):
        seen.append(kwargs["tool_call"]["name"])
        async for _ in await next_handler(**kwargs):
            yield ToolResponse(content=[TextBlock(type="text", text="4 shells")])

    async def program(job):
        async with models(job) as model:
            planner = agent(model, PLANNER, lookup)
            planner.toolkit.register_middleware(middleware)
            return await reply(planner, job.question)

    played = await bench.one(program)
    assert (played.output, seen) == (ANSWER, [TOOL])
    (span,) = tools_of(played)
    assert span.attributes[semconv.GEN_AI_TOOL_RESULT] == "4 shells"


@since(hasattr(Toolkit(), "_async_tasks"), "tools in the background")
async def test_a_tool_in_the_background_is_answered_for_at_once(bench):
    done = asyncio.Event()

    async def slow(item: str) -> ToolResponse:
        """Look up.

        Args:
            item (str): the item
        """
        await done.wait()
        raise KeyError(item)

    async def program(job):
        async with models(job) as model:
            planner = agent(model, PLANNER)
            planner.toolkit.register_tool_function(slow, async_execution=True)
            text = await reply(planner, job.question)
            done.set()
            return text

    played = await bench.one(program)
    assert played.output == ANSWER
    (span,) = tools_of(played)
    assert (span.status, "asynchronously" in span.attributes[semconv.GEN_AI_TOOL_RESULT]) == (
        "ok",
        True,
    )


async def test_a_tool_that_changes_the_toolkit_changes_the_agents(bench):
    async def program(job):
        async with models(job) as model:
            planner = agent(model, PLANNER)

            async def learn(item: str) -> ToolResponse:
                """Learn a tool.

                Args:
                    item (str): the item
                """
                planner.toolkit.register_tool_function(lookup)
                return text_result("learned")

            planner.toolkit.register_tool_function(learn)
            text = await reply(planner, job.question)
            return text, sorted(planner.toolkit.tools), planner.toolkit.tools["learn"].original_func

    played = await bench.one(program)
    text, tools, function = played.output
    assert (text, tools) == (ANSWER, ["learn", "lookup"])
    assert function.__name__ == "learn"
    assert not hasattr(function, "__wrapped__")


async def test_a_tool_used_without_an_agent_is_nobodys(bench):
    async def program(job):
        async with models(job) as model:

            async def ask(item: str) -> ToolResponse:
                """Ask.

                Args:
                    item (str): the item
                """
                answer = await model(JUDGE)([{"role": "user", "content": item}])
                return text_result(answer.content[0]["text"])

            toolkit = agent(model, PLANNER, ask).toolkit
            (chunk,) = [chunk async for chunk in await toolkit.call_tool_function(use("ask"))]
            return chunk.content[0]["text"]

    played = await bench.one(program)
    assert played.output == ANSWER
    check_identity(played, names={JUDGE: None})
    (span,) = tools_of(played)
    assert not span.agent
