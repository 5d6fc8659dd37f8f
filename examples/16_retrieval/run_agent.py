"""Trains the agent of `program.py`: its tasks, its reward, and the retriever that it needs.

The run starts a retriever of its own, at a free port. ``RETRIEVER_URL`` names another one instead,
such as ``http://127.0.0.1:8016/mcp``; ``RETRIEVER_INDEX`` names the index, which is made if the file
is missing.
"""

from __future__ import annotations

import asyncio
import os
import random
from functools import cache
from pathlib import Path

import index
import program
from agents import add_trace_processor
from agl_openai_agents import AglTracingProcessor
from f1 import f1
from process import RetrieverProcess
from world import SEED, Split, draw_world, questions

import agl_core as agl

add_trace_processor(AglTracingProcessor())

HELD_OUT = 240
"""Held-out questions of an evaluation."""


@cache
def retriever() -> RetrieverProcess:
    """Return the retriever of this process; it starts when its address is asked for."""
    default = Path(__file__).with_name("index.sqlite")
    file = Path(os.environ.get("RETRIEVER_INDEX") or default)
    if not file.exists():
        index.build(file, draw_world(random.Random(SEED)).chunks())
    index.check(file)
    return RetrieverProcess(file)


async def run_agent(task: agl.Task) -> str:
    """Answer one question."""
    url = os.environ.get("RETRIEVER_URL") or await asyncio.to_thread(retriever().url)
    return await program.ask(task.input["question"], url)


def reward(task: agl.Task, output: str, attempt: agl.AttemptRecord) -> agl.Score:
    """Return the F1 of the answer in the tags, 0.0 without tags."""
    del attempt
    gold = task.input["answer"]
    answer = program.answer_of(output)
    if answer is None:
        return agl.Score(0.0, "no answer in tags")
    value = f1(answer, gold)
    return agl.Score(value, "" if value == 1 else f"{answer!r} is not {gold!r}")


def train_tasks() -> list[agl.Task]:
    """Return every question about the entities to train on."""
    return _tasks("train")


def held_out_tasks() -> list[agl.Task]:
    """Return questions about other entities."""
    return _tasks("held_out")[:HELD_OUT]


def _tasks(split: Split) -> list[agl.Task]:
    drawn = questions(draw_world(random.Random(SEED)), split)
    random.Random(split).shuffle(drawn)
    return [
        agl.Task(
            id=f"{split}-{number}",
            input={"question": each.text, "answer": each.answer, "hops": len(each.hops)},
        )
        for number, each in enumerate(drawn)
    ]
