"""Prompts are counted at the gateway, with the model that answers, and cut by that count."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from agl_budget import PromptBudget
from agl_testing.fake_openai import FakeOptions

from agl_core import semconv
from agl_core.errors import ConfigError, ContextOverflowError, DeadlineError, EngineError
from agl_core.interfaces import Counted
from agl_core.tracing import AttemptContext, Recorder, agent_scope, enter, origins_of
from agl_core.types import LLM, Resources, RolloutQuery
from tests.core.gateway.test_counting import COUNTING, SYSTEM, TOOLS, Counter, turns


def context_of(world: Any, attempt: Any, *, seconds: float = 60.0) -> AttemptContext:
    rollout = world.store_rollout(attempt)
    return AttemptContext(
        rollout=rollout,
        attempt=attempt,
        llm=LLM(
            model="gpt-x",
            base_url=f"{world.gateway.url}/v1",
            api_key=world.gateway.attempt_key(attempt.rollout_id, attempt.id),
        ),
        resources=Resources(),
        recorder=Recorder(rollout.id, attempt.id),
        origins=origins_of(world.gateway.url),
        deadline=time.monotonic() + seconds,
    )


@pytest.fixture
async def inside(make_world: Any):
    """Enter an attempt of a world whose backend counts."""

    async def make(options: FakeOptions = COUNTING, **rollout: Any):
        world = await make_world(options)
        attempt = await world.attempt(**rollout)
        (found,) = await world.store.rollouts(_query(attempt.rollout_id))
        world.store_rollout = lambda _: found
        return world, attempt, context_of(world, attempt)

    return make


def _query(rollout_id: str):
    return RolloutQuery(ids=(rollout_id,))


async def test_a_backend_that_cannot_count_is_said_so(inside: Any) -> None:
    _, _, context = await inside(FakeOptions())
    with enter(context), pytest.raises(ConfigError, match="PromptBudget a count"):
        await PromptBudget(10, agent="writer").afit(turns(2))


async def test_prompts_are_cut_to_what_the_model_reads(inside: Any) -> None:
    world, attempt, context = await inside()
    messages = [SYSTEM, *turns(9)]
    budget = PromptBudget(250)
    with enter(context), agent_scope("writer"):
        cut = await budget.afit(messages, tools=TOOLS)
        again = await asyncio.to_thread(budget.fit, messages, tools=TOOLS)
    assert cut == again
    assert (cut[0], cut[-1]) == (messages[0], messages[-1])
    await world.ask(attempt, messages=cut, tools=TOOLS)
    read = len(world.server.log[0].prompt_token_ids)
    assert 150 < read <= 250
    told, _ = [s for s in context.recorder.snapshot() if s.name == semconv.AGL_PROMPT_CUT]
    assert told.agent == "writer"
    assert told.attributes[semconv.AGL_PROMPT_CUT] == {
        "agent": "writer",
        "budget": 250,
        "tokens_before": told.attributes[semconv.AGL_PROMPT_CUT]["tokens_before"],
        "tokens_after": read,
        "messages_cut": len(messages) - len(cut),
        "characters_cut": 0,
    }
    assert told.attributes[semconv.AGL_PROMPT_CUT]["tokens_before"] > 500


async def test_a_prompt_that_fits_leaves_no_trace(inside: Any) -> None:
    _, _, context = await inside()
    with enter(context):
        assert await PromptBudget(400, agent="writer").afit(turns(1)) == turns(1)
    assert context.recorder.snapshot() == []


async def test_the_run_sets_budgets_per_agent(inside: Any) -> None:
    _, _, context = await inside(metadata={"prompt_budgets": {"writer": 130, "j*": 200}})
    lengths = {}
    with enter(context):
        for agent in ("writer", "judge", "planner"):
            with agent_scope(agent):
                plan = await PromptBudget().aplan([SYSTEM, *turns(9)])
                lengths[agent] = (plan.budget, len(plan.messages))
    # The planner has none of its own: a quarter of the context of 500 is left to the answer.
    assert {agent: budget for agent, (budget, _) in lengths.items()} == {
        "writer": 130,
        "judge": 200,
        "planner": 375,
    }
    assert lengths["writer"][1] < lengths["judge"][1] < lengths["planner"][1]


async def test_a_budget_beyond_the_context_leaves_room_for_a_token(inside: Any) -> None:
    _, _, context = await inside()
    with enter(context):
        plan = await PromptBudget(10_000, agent="writer").aplan([SYSTEM, *turns(20)])
    assert plan.budget == 499


async def test_what_cannot_fit_is_an_overflow(inside: Any) -> None:
    _, _, context = await inside()
    long = {"role": "system", "content": "s" * 900}
    with enter(context), pytest.raises(ContextOverflowError, match=r"'writer'.*budget is 300"):
        await PromptBudget(300, agent="writer").afit([long, *turns(2)])


async def test_fit_on_the_loop_of_the_gateway_is_refused_before_it_hangs(inside: Any) -> None:
    _, _, context = await inside()
    with enter(context), pytest.raises(ConfigError, match="afit"):
        PromptBudget(300, agent="writer").fit(turns(2))


async def test_a_gateway_that_is_away_is_the_engines_fault(inside: Any) -> None:
    world, _, context = await inside()
    await world.gateway.stop()
    with enter(context), pytest.raises(EngineError, match="did not count"):
        await PromptBudget(300, agent="writer").afit(turns(2))
    context.deadline = time.monotonic() - 1
    with enter(context), pytest.raises(DeadlineError):
        await PromptBudget(300, agent="writer").afit(turns(2))


async def test_where_no_tools_are_offered_none_are_counted(inside: Any) -> None:
    world, _, context = await inside()
    world.backend = counter = Counter(Counted(1))
    await world.route("trained", ("writer",), trainable=True)
    with enter(context):
        await PromptBudget(3, agent="writer").afit(turns(1))
        await PromptBudget(3, agent="writer").afit(turns(1), tools=TOOLS)
    assert ["tools" in json.loads(body) for body in counter.bodies] == [False, True]


async def test_a_prompt_that_the_template_refuses_is_left_to_the_model_to_refuse(
    inside: Any,
) -> None:
    world, _, context = await inside()
    world.backend = Counter(ValueError("roles must alternate"))
    await world.route("trained", ("writer",), trainable=True)
    with enter(context):
        plan = await PromptBudget(3, agent="writer").aplan(turns(2))
    assert plan.messages == turns(2)
    assert plan.tokens is None
