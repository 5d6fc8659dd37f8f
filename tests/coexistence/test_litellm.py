"""Through LiteLLM: identity and exact tokens, however it sends.

Its synchronous calls go by httpx; its asynchronous ones by httpx over a transport of aiohttp.
"""

import os

import pytest
from agl_openai import _checks
from agl_testing._captured import check_identity, check_tokens, triplets
from agl_testing.bench import Bench
from agl_testing.scenario import ANSWER, EXPECTED, PLANNER, SYSTEM, WRITER, skeleton

from agl_core.config import RunConfig
from agl_core.tracing import agent_scope, attach
from tests.coexistence.programs import FORMS, contract_of

# Else it asks the network for prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
litellm = pytest.importorskip("litellm")
litellm.suppress_debug_info = True

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
PROVIDERS = ("openai", "hosted_vllm", "litellm_proxy")
"""The first sends by OpenAI's client, the second by LiteLLM's own."""


def asked(job, provider, **fields):
    model = f"{provider}/{job.model(WRITER)}"
    return {"model": model, "api_base": job.base_url, "api_key": job.api_key, **fields}


def chat(job, provider, **fields):
    return asked(job, provider, messages=[{"role": "user", "content": job.question}], **fields)


def run(job, provider):
    return litellm.completion(**chat(job, provider)).choices[0].message.content


async def arun(job, provider):
    return (await litellm.acompletion(**chat(job, provider))).choices[0].message.content


def stream(job, provider):
    chunks = litellm.completion(**chat(job, provider, stream=True))
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


async def astream(job, provider):
    chunks = await litellm.acompletion(**chat(job, provider, stream=True))
    return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])


def responses(job, provider):
    answer = litellm.responses(**asked(job, provider, input=job.question))
    return answer.output[0].content[0].text


async def aresponses(job, provider):
    answer = await litellm.aresponses(**asked(job, provider, input=job.question))
    return answer.output[0].content[0].text


@pytest.fixture
async def bench():
    async with Bench.open(integrations=[]) as bench:
        yield bench
        await litellm.close_litellm_async_clients()


@pytest.fixture
def over_aiohttp(monkeypatch):
    """The call ids of each request that LiteLLM hands to aiohttp."""
    from litellm.llms.custom_httpx.aiohttp_transport import LiteLLMAiohttpTransport

    sent = []
    handle = LiteLLMAiohttpTransport.handle_async_request

    async def watched(self, request):
        sent.append(request.headers.get_list("x-agl-call"))
        return await handle(self, request)

    monkeypatch.setattr(LiteLLMAiohttpTransport, "handle_async_request", watched)
    return sent


def speaking(ask, provider):
    """A program in which the writer asks."""

    def program(job):
        with agent_scope(WRITER):
            return ask(job, provider)

    async def aprogram(job):
        with agent_scope(WRITER):
            return await ask(job, provider)

    return aprogram if ask.__name__.startswith("a") else program


def check(played, bench, *agents):
    if played.error is not None:
        raise played.error
    assert played.output == ANSWER
    check_tokens(played, bench.fake.log)
    check_identity(played)
    assert [each.agent for each in triplets(played, "*")] == [*agents]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("ask", [run, arun, stream, astream, responses, aresponses])
async def test_its_calls_keep_their_agent_and_tokens(bench, over_aiohttp, ask, provider):
    played = await bench.one(speaking(ask, provider))
    check(played, bench, WRITER)
    call = [call.id for call in played.calls]
    assert over_aiohttp == ([call] if ask.__name__.startswith("a") else [])


def langchain(monkeypatch, programs):
    chat_models = pytest.importorskip("langchain_litellm")

    def model(self, agent):
        return chat_models.ChatLiteLLM(
            model=f"openai/{self._job.model(agent)}",
            api_base=self._job.base_url,
            api_key=self._job.api_key,
            streaming=self._streaming,
        )

    monkeypatch.setattr(programs._Models, "__call__", model)


def openai_agents(monkeypatch, programs):
    from agents import Agent
    from agents.extensions.models.litellm_model import LitellmModel

    def agent(self, job, client, name, *tools, **fields):
        model = LitellmModel(f"openai/{job.model(name)}", job.base_url, job.api_key)
        return Agent(name=name, instructions=SYSTEM, model=model, tools=list(tools), **fields)

    monkeypatch.setattr(programs.OpenAIAgentsProgram, "_agent", agent)


def crewai(monkeypatch, programs):
    # It gives tools to models only that LiteLLM knows to take some.
    takes_tools = {"litellm_provider": "openai", "supports_function_calling": True}
    litellm.register_model({f"{name}@0": takes_tools for name in (PLANNER, WRITER)})

    def model(job, agent, **fields):
        return programs.LLM(
            model=f"openai/{job.model(agent)}",
            is_litellm=True,
            base_url=job.base_url,
            api_key=job.api_key,
            **fields,
        )

    monkeypatch.setattr(programs, "model", model)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("through_litellm", [langchain, openai_agents, crewai])
async def test_frameworks_that_call_through_it(bench, monkeypatch, through_litellm, form):
    framework = through_litellm.__name__
    pytest.importorskip({"openai_agents": "agents"}.get(framework, framework))
    suite = contract_of(framework)()
    program = suite.program()
    if form in program.lacks:
        pytest.skip(program.lacks[form])
    through_litellm(monkeypatch, pytest.importorskip(type(program).__module__))
    attachment = attach(integrations=[suite.integration()])
    try:
        played = await bench.one(getattr(program, form))
    finally:
        attachment.detach()
    check(played, bench, PLANNER, PLANNER, WRITER)
    assert skeleton(played.spans) == EXPECTED


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_what_its_router_sends_again_is_one_call_of_the_agent(bench, asynchronous):
    chat_models = pytest.importorskip("langchain_litellm")
    from agl_langchain._integration import LangChainIntegration
    from langchain.agents import create_agent

    def writer(job):
        deployment = asked(job, "openai")
        router = litellm.Router(
            [{"model_name": "any", "litellm_params": deployment}], num_retries=2, retry_after=0
        )
        model = chat_models.ChatLiteLLMRouter(router=router, model="any")
        return create_agent(model, name=WRITER), {"messages": [("user", job.question)]}

    def program(job):
        agent, question = writer(job)
        return agent.invoke(question)["messages"][-1].text

    async def aprogram(job):
        agent, question = writer(job)
        return (await agent.ainvoke(question))["messages"][-1].text

    bench.fake.fail(1)
    attachment = attach(integrations=[LangChainIntegration()])
    try:
        played = await bench.one(aprogram if asynchronous else program)
    finally:
        attachment.detach()
    assert [(call.tries, call.status_code) for call in played.calls] == [(1, 500), (2, 200)]
    check_identity(played)
    assert [each.agent for each in triplets(played, "*")] == [WRITER]


async def test_calls_by_aiohttp_itself_are_refused_and_doctor_says_what_to_write(bench):
    played = await bench.one(speaking(arun, "aiohttp_openai"))
    assert played.calls == []
    assert "Aiohttp_openai" in str(played.error)
    (finding,) = _checks.pitfalls([played.record], RunConfig())
    assert finding.check == "openai.litellm"
    assert "openai/" in finding.fix
