"""A budget in the model context of an agent, by the count of the model that answers."""

import pytest
from agl_autogen import PromptBudgetContext
from agl_autogen._integration import AutoGenIntegration
from agl_testing.bench import Bench
from agl_testing.fake_openai import FakeOptions
from agl_testing.scenario import ANSWER, SYSTEM, WRITER
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall, Image
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import FunctionTool
from PIL import Image as Picture

from agl_core import semconv
from agl_core.errors import ConfigError, ContextOverflowError
from agl_core.tracing import attach


@pytest.fixture
async def bench():
    async with Bench.open(FakeOptions(tokenize=True, stable=True)) as bench:
        attachment = attach(integrations=[AutoGenIntegration()])
        yield bench
        attachment.detach()


def user(text):
    return UserMessage(content=text, source="user")


def history(count):
    return [
        message
        for n in range(count)
        for message in (
            user(f"question {n} " + "x" * 60),
            AssistantMessage(content=f"answer {n}", source=WRITER),
        )
    ]


def tool_turn(number, result):
    call = FunctionCall(id=f"call-{number}", name="look", arguments="{}")
    told = FunctionExecutionResult(content=result, name="look", call_id=call.id, is_error=False)
    return [
        AssistantMessage(content=[call], source=WRITER, thought="Let me look."),
        FunctionExecutionResultMessage(content=[told]),
    ]


def cuts(played):
    return [
        (span.agent, span.attributes[semconv.AGL_PROMPT_CUT])
        for span in played.spans
        if span.name == semconv.AGL_PROMPT_CUT
    ]


async def test_the_prompt_is_cut_and_the_context_keeps_everything(bench, agent):
    async def program(job):
        context = PromptBudgetContext(120, system_message=SYSTEM, initial_messages=history(6))
        writer = agent(job, WRITER, model_context=context)
        said = (await writer.run(task=job.question)).messages[-1].content
        return said, len((await context.save_state())["messages"])

    played = await bench.one(program)
    if played.error is not None:
        raise played.error
    assert played.output == (ANSWER, 14)
    (call,) = played.calls
    assert call.messages[0] == {"role": "system", "content": SYSTEM}
    assert call.messages[-1]["content"] == played.job.question
    assert len(call.prompt_token_ids) <= 120
    ((speaker, cut),) = cuts(played)
    assert (speaker, cut["agent"], cut["budget"]) == (WRITER, WRITER, 120)
    assert cut["messages_cut"] == 14 - len(call.messages)
    assert cut["tokens_after"] == len(call.prompt_token_ids)


async def test_a_prompt_that_fits_is_not_touched(bench, agent):
    async def program(job):
        context = PromptBudgetContext(10_000, initial_messages=history(2))
        await agent(job, WRITER, model_context=context).run(task=job.question)

    played = await bench.one(program)
    assert len(played.calls[0].messages) == 6
    assert cuts(played) == []


async def test_tools_count_and_their_results_leave_with_the_call(bench, agent):
    def look(item: str) -> str:
        """Look up what an item costs, in any of our many shops."""
        return item

    async def program(job):
        tool = FunctionTool(look, "Look up what an item costs, in any of our many shops.")
        turns = [user("What is cheap?"), *tool_turn(1, "x" * 4000), *tool_turn(2, "y")]
        context = PromptBudgetContext(
            700, system_message=SYSTEM, tool_schema=[tool.schema], initial_messages=turns
        )
        writer = agent(job, WRITER, model_context=context, tools=[tool])
        await writer.run(task=job.question)

    played = await bench.one(program)
    if played.error is not None:
        raise played.error
    sent = played.calls[0].messages
    asked = [call["id"] for message in sent for call in message.get("tool_calls") or ()]
    answered = [message["tool_call_id"] for message in sent if message["role"] == "tool"]
    assert asked == answered
    assert len(played.calls[0].prompt_token_ids) <= 700
    assert cuts(played)


async def test_long_texts_lose_their_middle_wherever_they_stand(bench, agent):
    picture = Image(Picture.new("RGB", (2, 2)))

    async def program(job):
        context = PromptBudgetContext(1000)
        for message in (
            UserMessage(content=["Look: " + "u" * 4000, picture], source="user"),
            *tool_turn(1, "begin " + "r" * 4000 + " end"),
        ):
            await context.add_message(message)
        return await context.get_messages(), context._messages

    played = await bench.one(program)
    if played.error is not None:
        raise played.error
    (asked, called, answered), kept = played.output
    assert called is kept[1]
    assert asked.content[1] is picture
    assert asked.content[0].startswith("Look: u")
    assert len(asked.content[0]) < 1000
    assert answered.content[0].content.startswith("begin r")
    assert answered.content[0].content.endswith("r end")
    assert len(kept[0].content[0]) > 4000


async def test_what_cannot_be_cut_is_an_overflow_of_the_rollout(bench, agent):
    async def program(job):
        context = PromptBudgetContext(3)
        await agent(job, WRITER, model_context=context).run(task=job.question)

    played = await bench.one(program)
    assert isinstance(played.error, ContextOverflowError)
    assert played.calls == []


async def test_each_agent_of_a_team_has_a_budget_of_its_own(bench, agent):
    async def program(job):
        members = [
            agent(job, name, model_context=PromptBudgetContext(80, system_message=SYSTEM))
            for name in ("planner", WRITER)
        ]
        team = RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(9))
        await team.run(task=job.question)

    played = await bench.one(program)
    if played.error is not None:
        raise played.error
    assert max(len(call.prompt_token_ids) for call in played.calls) <= 80
    assert {speaker for speaker, _ in cuts(played)} == {"planner", WRITER}


async def test_outside_a_rollout_nothing_is_cut():
    context = PromptBudgetContext(3, initial_messages=history(3))
    assert await context.get_messages() == history(3)


def test_a_budget_that_holds_nothing_is_refused():
    with pytest.raises(ConfigError):
        PromptBudgetContext(0)


async def test_it_is_saved_and_loaded_as_autogens_own_contexts():
    given = PromptBudgetContext(
        100,
        system_message=SYSTEM,
        tool_schema=[{"name": "look", "description": "Looks."}],
        initial_messages=[SystemMessage(content="x")],
    )
    loaded = ChatCompletionContext.load_component(given.dump_component())
    assert isinstance(loaded, PromptBudgetContext)
    assert loaded._to_config() == given._to_config()
    assert await loaded.get_messages() == [SystemMessage(content="x")]
