"""A run with calls of chosen tokens, and the streams that a training keeps of them."""

from __future__ import annotations

import json
import math
from array import array
from contextlib import suppress

from agl_streams._file import stream_bytes
from agl_testing.bandit import make_triplet

from agl_core.adapters import forest
from agl_core.interfaces import CreditedCall
from agl_core.types import CallCredit, Choice, ModelCall, SpanKind, TokenNumbers, Update
from tests.plugins.dashboard.world import World, span

EMOJI = "😀".encode()
VOCABULARY = ["Ġ", "H", "ello", "Ċ", "you", "<bad>", "ðŁ", "ĺĢ", "\u202e", "&<b>"]
"""Byte-level letters; 6 and 7 are the two halves of an emoji."""
END = len(VOCABULARY)


def write_tokenizer(directory, policy="trained"):
    path = directory / "tokens" / "tokenizer" / f"{policy}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    vocab = {text: number for number, text in enumerate(VOCABULARY)}
    path.write_text(
        json.dumps(
            {
                "model": {"type": "BPE", "vocab": vocab, "merges": []},
                "decoder": {"type": "ByteLevel"},
                "added_tokens": [{"id": END, "content": "<|im_end|>", "special": True}],
            }
        )
    )


def model_call(claim, number, prompt, *answers, agent="writer", **fields):
    return ModelCall(
        id=f"call-{number}",
        rollout_id=claim.rollout.id,
        attempt_id=claim.attempt.id,
        agent=agent,
        messages=[{"role": "user", "content": "Hello?"}],
        prompt_token_ids=prompt,
        choices=[
            Choice(
                index=at,
                token_ids=answer,
                logprobs=[-0.25 * (1 + place) for place in range(len(answer))],
                text="Hello you",
                finish_reason="stop",
            )
            for at, answer in enumerate(answers)
        ],
        logprobs_mode="processed",
        complete=True,
        model="m",
        policy="trained",
        policy_version=3,
        started_ns=number,
        **fields,
    )


class TokenWorld:
    """A run's directory with a group of rollouts, each with some calls."""

    def __init__(self, directory):
        self.directory = directory
        self.rollouts = []
        self.calls = []

    async def open(self, **config):
        self.world = await World(self.directory).open(**config)
        return self

    async def rollout(self, *calls, reward=1.0, **fields):
        """Store a rollout with calls, each a prompt and its answers; returns its id."""
        claim = await self.world.begin(**{"step": 0, "group_id": "g", **fields})
        spans = []
        for prompt, *answers in calls:
            call = model_call(claim, len(self.calls), prompt, *answers)
            self.calls.append(call)
            spans.append(
                span(claim, SpanKind.LLM, "chat", agent=call.agent, call_id=call.id, call=call)
            )
        from agl_core.types import Reward

        spans.append(span(claim, SpanKind.REWARD, "r", reward=Reward(value=reward)))
        self.rollouts.append(await self.world.end(claim, spans))
        return self.rollouts[-1]

    def train(self, *, numbers=True, step=0, weights=lambda call, at: 1.0):
        """Write the stream of all calls, as a training of one step does."""
        credited = []
        for at, call in enumerate(self.calls):
            for choice in call.choices:
                size = len(choice.token_ids)
                triplet = make_triplet(
                    call.id,
                    choice.token_ids,
                    rollout_id=call.rollout_id,
                    attempt_id=call.attempt_id,
                    agent=call.agent,
                    ordinal=at,
                    choice=choice.index,
                    prompt_ids=call.prompt_token_ids,
                    logprobs=choice.logprobs,
                    policy="trained",
                )
                credit = CallCredit(
                    call_id=call.id,
                    choice=choice.index,
                    advantages=[1.0 if at % 2 == 0 else -0.5] * size,
                    weights=[weights(call, place) for place in range(size)],
                )
                credited.append(CreditedCall(triplet=triplet, credit=credit, group=0))
        batch = forest(credited, policy="trained", step=step)
        found = None
        if numbers:
            before = array("d", [value - 0.125 for value in batch.logprobs])
            after = array("d", [value + math.log(2) for value in before])
            if len(after) > 1:
                after[-1] = math.nan
            entropies = array("d", [0.5] * len(before))
            found = TokenNumbers(entropies=entropies, before=before, after=after)
        update = Update(policy="trained", step=step, version=4, tokens=found)
        owner = {call.id: call.rollout_id for call in self.calls}
        content = stream_bytes(batch, update, [owner[each] for each in batch.call_ids])
        path = self.directory / "tokens" / f"step-{step + 1:06d}" / "trained.tokens"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return batch

    async def close(self):
        with suppress(AttributeError):
            await self.world.close()


PROMPT = [1, 2, 0, 4, 3]
"""Hello you, and a new line."""


async def small_run(directory, **trained):
    """Two rollouts of one group with three calls; returns the world, which is closed."""
    made = await TokenWorld(directory).open()
    await made.rollout((PROMPT, [4, 6, 7, END]), reward=1.0)
    await made.rollout((PROMPT, [4, 0, END]), ([*PROMPT, 4, 0, END, 1], [2]), reward=0.0)
    write_tokenizer(directory)
    if trained is not None:
        made.train(**trained)
    await made.close()
    return made


async def large_run(directory, tokens):
    """A call with many tokens, all of them trained; returns its world."""
    made = await TokenWorld(directory).open()
    answer = [(at * 7) % 5 for at in range(tokens - 1000)]
    await made.rollout(([at % 5 for at in range(1000)], answer))
    write_tokenizer(directory)
    made.train()
    await made.close()
    return made
