"""Runs for the dashboard's tests, written as a training writes them."""

from __future__ import annotations

import json
from types import SimpleNamespace

from agl_progress._log import RunLog

from agl_core import semconv
from agl_core.clocks import new_id, wall_ns
from agl_core.config import RunConfig
from agl_core.config.loader import save_config
from agl_core.store import SqliteStore
from agl_core.types import (
    AttemptStatus,
    Choice,
    Estimate,
    Evaluation,
    Failure,
    FailureKind,
    ModelCall,
    Report,
    Reward,
    RewardTarget,
    Rollout,
    Span,
    SpanKind,
    StepReport,
    Task,
)

HOSTILE = [
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "'\"><svg onload=document.title='owned'>",
    "{{ 7 * 7 }}{% raw %}",
    "</pre></script><iframe src=javascript:document.title='owned'>",
    "a\x00b\x1b[31mred\x07\x7f",
    "\u202egnp.exe\u202c",
    "שלום עולם",
    "lone \ud800 surrogate",
    "[link](javascript:alert(1))",
]


class World:
    """A run's directory, open for writing."""

    def __init__(self, directory):
        self.directory = directory
        self.log = RunLog()
        self.number = 0

    async def open(self, **config):
        self.directory.mkdir(parents=True)
        given = {"agents": ["writer"], "model": "m", "name": self.directory.name, **config}
        self.config = RunConfig.model_validate({**given, "directory": str(self.directory.parent)})
        save_config(self.config, self.directory)
        self.store = SqliteStore(self.directory / "store.db")
        await self.store.open()
        return self

    async def close(self):
        await self.store.close()

    async def make(self):
        """Make the run without rollouts."""
        await self.open()
        await self.close()

    async def more(self):
        """Open the store again for one more rollout."""
        self.store = SqliteStore(self.directory / "store.db")
        await self.store.open()
        await self.rollout(1.0)
        await self.store.close()

    def begin_log(self, steps=3):
        config = SimpleNamespace(
            directory=str(self.directory.parent),
            name=self.directory.name,
            train=SimpleNamespace(steps=steps),
        )
        self.log.started(config)

    def step(self, step, reward=0.5, **fields):
        metrics = {"loss": 1.0 / step, "entropy": 0.3, "update_s": 0.1, "kl": 0.01}
        given = {"steps": 3, "rollouts": 4, "calls": 8, "tokens": 100, "wall_s": 2.0}
        channels = {"main": reward}
        given |= {
            "step": step,
            "reward": reward,
            "channels": channels,
            "metrics": metrics,
            **fields,
        }
        self.log.step(StepReport(**given))

    def evaluation(self, step, mean, **fields):
        score = Estimate(mean=mean, low=mean - 0.1, high=mean + 0.1, n=2)
        self.log.evaluation(Evaluation(step=step, score=score, **fields))

    def finish(self):
        self.log.finished(Report(run_id="run", directory=str(self.directory), wall_s=9.0))

    async def begin(self, **fields):
        """Queue a rollout and claim it."""
        self.number += 1
        given = {
            "id": new_id("ro"),
            "task": Task(id=f"task {self.number}", input={"question": "2+2"}, expected="4"),
            "run_id": self.directory.name,
            "group_id": "g1",
        }
        await self.store.enqueue([Rollout(**{**given, **fields})])
        (claim,) = await self.store.claim("worker-1")
        return claim

    async def end(self, claim, spans, failure=None, output="the output"):
        await self.store.add_spans([span for span in spans if span.call is not None])
        await self.store.finish(
            claim.attempt.id,
            status=AttemptStatus.FAILED if failure else AttemptStatus.SUCCEEDED,
            spans=[span for span in spans if span.call is None],
            failure=failure,
            output=output,
        )
        return claim.rollout.id

    async def rollout(self, reward=1.0, *, say="four", why="as expected", failed="", **fields):
        """Store one ended rollout: a planner with a tool, then a writer."""
        claim = await self.begin(**fields)
        spans = conversation(claim, say)
        if reward is not None:
            given = Reward(value=reward, why=why, source="judge")
            spans.append(span(claim, SpanKind.REWARD, "reward", reward=given))
            own = Reward(value=reward / 2, target=RewardTarget(agent="writer"))
            spans.append(span(claim, SpanKind.REWARD, "own", reward=own))
        failure = Failure(
            kind=FailureKind.AGENT, message=failed, type="ValueError", traceback=f"Trace: {failed}"
        )
        return await self.end(claim, spans, failure if failed else None, output=say)


def span(claim, kind, name, **fields):
    now = wall_ns()
    # Longer than it takes to make a conversation, so that none of its spans ends before another begins.
    given = {"start_ns": now, "end_ns": now + 500_000_000, "id": new_id("sp")}
    return Span(
        rollout_id=claim.rollout.id,
        attempt_id=claim.attempt.id,
        kind=kind,
        name=name,
        **{**given, **fields},
    )


def model_call(claim, agent, messages, text, **fields):
    """The client's span of a call and the gateway's."""
    names = ("parent_id",)
    around = {name: fields.pop(name) for name in names if name in fields}
    choice = Choice(
        token_ids=[4, 5],
        logprobs=[-0.5, -0.25],
        text=text,
        finish_reason="stop",
        **{k: fields.pop(k) for k in ("reasoning", "tool_calls") if k in fields},
    )
    call = ModelCall(
        id=new_id("ca"),
        rollout_id=claim.rollout.id,
        attempt_id=claim.attempt.id,
        agent=agent,
        messages=messages,
        prompt_token_ids=[1, 2, 3],
        choices=[choice],
        logprobs_mode="processed",
        complete=True,
        model="m",
        policy="trained",
        policy_version=2,
        started_ns=wall_ns(),
        ended_ns=wall_ns() + 3_000_000,
        **fields,
    )
    return [
        span(claim, SpanKind.LLM, "chat", agent=agent, call_id=call.id, **around),
        span(claim, SpanKind.LLM, "chat", agent=agent, call_id=call.id, call=call),
    ]


def conversation(claim, say):
    asked = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}]
    system, user = {"role": "system", "content": "Plan."}, {"role": "user", "content": "2+2?"}
    planner = span(claim, SpanKind.AGENT, "planner", agent="planner", agent_run_id="p")
    planned = model_call(
        claim, "planner", [system, user], "", tool_calls=asked, parent_id=planner.id
    )
    tool = span(
        claim,
        SpanKind.TOOL,
        "look",
        parent_id=planner.id,
        attributes={semconv.GEN_AI_TOOL_ARGUMENTS: '{"a":1}', semconv.GEN_AI_TOOL_RESULT: say},
    )
    writer = span(claim, SpanKind.AGENT, "writer", agent="writer", agent_run_id="w")
    history = [
        system,
        user,
        {"role": "assistant", "content": "", "tool_calls": asked},
        {"role": "tool", "content": say, "tool_call_id": "1"},
    ]
    written = model_call(
        claim, "writer", history, say, reasoning="I think so.", parent_id=writer.id
    )
    return [planner, *planned, tool, writer, *written]


async def tuned_run(directory):
    """A run of prompt phases alone: every evaluation is at step 0, as are the candidates' rollouts."""
    world = await World(directory).open()
    world.begin_log(steps=0)
    for version, (phase, value) in enumerate([(None, 0.0), (0, 0.5), (1, 1.0)], start=1):
        mean = 1.5 * value  # with the reward of the writer alone
        world.evaluation(0, mean, phase=phase, resources_version=10 * version)
        for number, reward in ((10 * version, value), (10 * version + 1, 0.25)):
            for name in ("one", "two"):
                task = Task(id=name, input="x")
                await world.rollout(
                    reward, mode="val", resources_version=number, task=task, group_id=f"val-{name}"
                )
    world.finish()
    await world.close()


async def finished_run(directory):
    """A run of three steps with two evaluations, one failed rollout and tuned prompts."""
    world = await World(directory).open()
    world.begin_log()
    world.evaluation(0, 0.2)
    for task, reward in (("one", 0.0), ("two", 1.0)):
        await world.rollout(
            reward, mode="val", step=0, task=Task(id=task, input="x"), group_id=task
        )
    for step in range(3):
        world.step(step + 1, reward=0.2 * (step + 1), lost={"calls_refused": 1})
        for at in range(2):
            await world.rollout(0.5 * at, step=step, group_id=f"g{step}")
    await world.rollout(None, failed="the agent broke", step=2, group_id="g2")
    world.evaluation(3, 0.9)
    for task, reward in (("one", 1.0), ("two", 1.0)):
        await world.rollout(
            reward, mode="val", step=3, task=Task(id=task, input="x"), group_id=task
        )
    world.finish()
    write_prompts(directory)
    await world.close()


def write_prompts(directory):
    (directory / "prompts").mkdir()
    one, two = {"system": "Answer briefly."}, {"system": "Answer <b>briefly</b> and kindly."}
    score = {"split": "val", "tasks": ["a", "b"], "low": 0.1, "high": 0.9}
    events = [
        {"event": "candidate", "digest": "aaaa1111", "texts": one, "parent": "", "why": "first"},
        {"event": "score", "digest": "aaaa1111", "mean": 0.25, **score},
        {
            "event": "candidate",
            "digest": "bbbb2222",
            "texts": two,
            "parent": "aaaa1111",
            "why": "k",
        },
        {"event": "score", "digest": "bbbb2222", "mean": 0.75, **score},
        {"event": "refused", "digest": "cccc", "cause": "same", "why": "equal"},
        {"event": "chosen", "digest": "bbbb2222", "texts": two, "mean": 0.75, "reason": ""},
    ]
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (directory / "prompts" / "phase-1.jsonl").write_text(f"{lines}no json\n" + '{"event": "par')


async def hostile_run(directory):
    """A run in which every text is hostile; returns the rollouts' ids."""
    world = await World(directory).open()
    ids = [
        await world.rollout(
            1.0,
            say=text,
            why=text,
            failed=text,
            task=Task(id=text, input={"q": text}, expected=text),
        )
        for text in HOSTILE
    ]
    long = "x" * 5_000_000
    ids.append(await world.rollout(0.5, say=long, task=Task(id="long", input=long)))
    await world.close()
    return ids


async def large_trace(directory, spans):
    """A rollout with a very large trace."""
    world = await World(directory).open()
    claim = await world.begin()
    agent = span(claim, SpanKind.AGENT, "planner", agent="planner")
    inner = [
        span(claim, SpanKind.OPERATION, f"step {at}", parent_id=agent.id, sequence=at)
        for at in range(spans)
    ]
    rollout_id = await world.end(claim, [agent, *inner])
    await world.close()
    return rollout_id
