"""The pictures of the documentation: which pages they show, and a run to show them of."""

from __future__ import annotations

import json
import math
import random
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from agl_core import semconv
from agl_core.types import Reward, SpanKind, Task
from tests.plugins.dashboard.world import World, model_call, span

WIDTH: Final = 1280
LOOK: Final = {
    "color_scheme": "light",
    "reduced_motion": "reduce",
    "locale": "en-GB",
    "timezone_id": "UTC",
}
PRICES: Final = {"red lamp": "42 euros", "blue chair": "17 dollars", "old clock": "88 pounds"}


@dataclass(frozen=True, slots=True)
class Picture:
    """A page of a run, as a file of the documentation shows it."""

    name: str
    """Of the file, without its ending."""
    page: str
    """Its address below the run's."""
    ready: str
    """Selector of what is there once the page can be shown."""
    then: Callable[[Any], None] = lambda page: None
    """What is done on the page before the picture is taken."""
    height: int = 800


def first_trace(page: Any) -> None:
    """Open the first rollout of a list, and its last model call."""
    page.locator("[data-row] a").first.click()
    page.locator("#tree a.span.llm").last.click()
    page.wait_for_selector("#detail .said.answer")
    page.mouse.move(0, 0)


def its_tokens(page: Any) -> None:
    """Show the tokens of that call, coloured by their advantages where the run has kept them."""
    first_trace(page)
    page.click("#detail a.each")
    page.wait_for_selector("#text")
    if page.locator("#colours a[data-by=advantage]").count():
        page.click("#colours a[data-by=advantage]")
        page.wait_for_url("**by=advantage**")
    page.locator("#text").filter(has_text=re.compile(r"\S")).wait_for()


def its_group(page: Any) -> None:
    """Show the prefix tree of that call's group."""
    its_tokens(page)
    page.click("a:has-text('Prefix tree')")
    page.wait_for_url("**view=group**")
    page.wait_for_selector("main section")


PICTURES: Final = [
    Picture("dashboard-overview", "overview", "#charts[data-drawn]"),
    Picture("dashboard-trace", "rollouts?mode=train&sort=reward", "[data-row]", first_trace, 540),
    Picture("dashboard-tokens", "rollouts?mode=train&sort=reward", "[data-row]", its_tokens, 380),
    Picture("dashboard-tree", "rollouts?mode=train&sort=reward", "[data-row]", its_group, 540),
]


def packed(png: bytes) -> bytes:
    """Return a picture compressed as far as zlib can, with equal pixels."""
    head, chunks, at = png[:8], [], 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        chunks.append((png[at + 4 : at + 8], png[at + 8 : at + 8 + length]))
        at += length + 12
    pixels = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    kept = [next(each for each in chunks if each[0] == b"IHDR")]
    kept += [(b"IDAT", zlib.compress(pixels, 9)), (b"IEND", b"")]
    return head + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in kept
    )


async def example_run(directory: Any, steps: int = 20) -> None:
    """Write a run of a shop's assistant: a planner that looks prices up, a writer that learns."""
    chance = random.Random(7)
    world = await World(directory).open(train={"steps": steps})
    world.begin_log(steps)
    world.evaluation(0, 0.3)
    for step in range(1, steps + 1):
        skill = 0.92 - 0.7 * math.exp(-step / 5) + chance.uniform(-0.05, 0.05)
        world.step(
            step,
            reward=skill,
            steps=steps,
            rollouts=64,
            calls=128,
            tokens=chance.randint(680, 760),
            lost={"groups_without_signal": step // 5},
            metrics={
                "loss": 0.16 * math.exp(-step / 8) + chance.uniform(0, 0.02),
                "entropy": 0.4 * math.exp(-step / 12) + chance.uniform(0, 0.03),
                "kl": 0.002 * step + chance.uniform(0, 0.003),
                "update_s": chance.uniform(0.9, 1.1),
            },
        )
        if step % 10 == 0:
            world.evaluation(step, skill)
    for at in range(8):
        await _served(world, right=at % 2 == 0, step=steps - 1, group=f"group {at // 4}")
    world.finish()
    await world.close()


async def _served(world: World, *, right: bool, step: int, group: str) -> None:
    """Store a rollout in which a customer asks for a price."""
    item, price = [*PRICES.items()][0 if group.endswith("0") else 1]
    question = f"How much is the {item}?"
    claim = await world.begin(
        task=Task(id=item, input=question, expected=price), step=step, group_id=group
    )
    arguments = json.dumps({"item": item})
    found = json.dumps({"item": item, "price": price})
    asked = [
        {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": arguments}}
    ]
    planner = span(claim, SpanKind.AGENT, "planner", agent="planner", agent_run_id="p")
    plan = [{"role": "system", "content": "You are the planner. Call one tool."}]
    plan.append({"role": "user", "content": question})
    tool = {semconv.GEN_AI_TOOL_ARGUMENTS: arguments, semconv.GEN_AI_TOOL_RESULT: found}
    writer = span(claim, SpanKind.AGENT, "writer", agent="writer", agent_run_id="w")
    write = [{"role": "system", "content": "You are the writer. One short sentence: item, price."}]
    write.append({"role": "user", "content": f"Question: {question}\nResult: {found}"})
    answer = f"The {item} costs {price if right else 'a few coins'}."
    thought = "The result has the price; the customer wants one sentence."
    why = f"expected {price}" if right else f"expected {price}, found none"
    reward = Reward(value=float(right), why=why, source="exact_match")
    spans = [
        planner,
        *model_call(claim, "planner", plan, "", tool_calls=asked, parent_id=planner.id),
        span(claim, SpanKind.TOOL, "lookup", parent_id=planner.id, attributes=tool),
        writer,
        *model_call(claim, "writer", write, answer, reasoning=thought, parent_id=writer.id),
        span(claim, SpanKind.REWARD, "reward", reward=reward),
    ]
    await world.end(claim, spans, output=answer)
