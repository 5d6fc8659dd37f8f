"""The SDK's models that go through LiteLLM instead of OpenAI's client."""

import pytest
from agents import Agent, Runner, function_tool
from agl_testing._captured import check_identity, check_tokens, triplets
from agl_testing.scenario import ANSWER, PLANNER, SYSTEM, TOOL_RESULT, WRITER

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


@pytest.fixture(scope="module")
def litellm_model():
    with pytest.MonkeyPatch.context() as environment:
        # Else it asks the network for prices when it is imported.
        environment.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        pytest.importorskip("litellm")
        from agents.extensions.models.litellm_model import LitellmModel
    return LitellmModel


@function_tool
def lookup(item: str) -> str:
    """Look up what an item costs."""
    return TOOL_RESULT


@pytest.mark.parametrize("streamed", [False, True])
async def test_calls_through_litellm_keep_their_agents_and_tokens(bench, litellm_model, streamed):
    async def ask(job, name, text, *tools):
        model = litellm_model(f"openai/{job.model(name)}", job.base_url, job.api_key)
        agent = Agent(name=name, instructions=SYSTEM, model=model, tools=list(tools))
        if not streamed:
            return (await Runner.run(agent, text)).final_output
        result = Runner.run_streamed(agent, text)
        async for _ in result.stream_events():
            pass
        return result.final_output

    async def program(job):
        plan = await ask(job, PLANNER, job.question, lookup)
        return await ask(job, WRITER, plan)

    played = await bench.one(program)
    if played.error is not None:
        raise played.error
    assert played.output == ANSWER
    check_tokens(played, bench.fake.log)
    check_identity(played)
    assert [each.agent for each in triplets(played, "*")] == [PLANNER, PLANNER, WRITER]
