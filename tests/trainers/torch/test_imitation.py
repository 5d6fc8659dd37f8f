"""The algorithms ``sft`` and ``rft`` on the ``torch`` engine: the loss, and what is learned."""

from __future__ import annotations

import json

import pytest
from agl_imitation._conversations import read_examples
from agl_imitation._rendering import Chat, UnusableExampleError, rendered
from agl_imitation._sft import SFT, SFTOptions
from agl_torch.engine import TorchEngine
from agl_torch.losses.cross_entropy import CrossEntropy

import agl_core as agl
from agl_core.adapters import forest
from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup, Demonstrator
from agl_core.training import Batcher
from agl_core.types import Policy

ASKED = [{"role": "system", "content": "Short."}, {"role": "user", "content": "price?"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}},
    }
]
CALL = {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": '{"a": 1}'}}
TURNS = [
    *ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "9 <|im_end|> euros"},
    {"role": "assistant", "content": "9 euros"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": "yes", "weight": 0},
    {"role": "user", "content": "really?"},
    {"role": "assistant", "content": "yes!", "weight": 1},
]


def write(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


@pytest.fixture
def chat(model_path):
    policy = Policy(name="trained", model=model_path, agents=("writer",), trainable=True)
    return Chat(policy=policy, render=TorchEngine.renderer(model_path), limit=512)


def calls_of(group):
    return [call for paths in group.trajectories for path in paths for call in path.calls]


def text_of(tokenizer, ids):
    return tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)


def example_of(tmp_path, row):
    (example,) = read_examples(write(tmp_path / "data.jsonl", row))
    return example


def test_every_answer_follows_the_prompt_of_its_request(tmp_path, chat, tokenizer):
    example = example_of(tmp_path, {"messages": TURNS, "tools": TOOLS, "agent": "writer"})
    calls = calls_of(rendered(example, chat))
    assert [text_of(tokenizer, call.response_ids) for call in calls] == [
        '<tool_call>\n{"name": "lookup", "arguments": {"a": 1}}\n</tool_call><|im_end|>',
        "9 euros<|im_end|>",
        "yes!<|im_end|>",
    ]
    for call, index in zip(calls, (2, 4, 8), strict=True):
        messages = [{**each} for each in TURNS[:index]]
        for message in messages:
            message.pop("weight", None)
        assert list(call.prompt_ids) == list(chat.render(messages, TOOLS))
        assert text_of(tokenizer, call.prompt_ids).endswith("<|im_start|>assistant\n")


async def test_the_tokens_are_those_that_the_engine_prompts_and_samples(
    run_engine, client, chat, tmp_path
):
    async with run_engine([chat.policy]) as engine:
        reply = await client(engine, "trained").ask("price?", max_tokens=8, temperature=0)
    answer = {"role": "assistant", "content": reply.answers[0].content}
    row = {"messages": [{"role": "user", "content": "price?"}, answer], "agent": "writer"}
    (call,) = calls_of(rendered(example_of(tmp_path, row), chat))
    assert list(call.prompt_ids) == reply.prompt


@pytest.mark.parametrize(
    ("messages", "cause", "limit"),
    [
        ([*ASKED, {"role": "assistant", "content": "x" * 600}], "conversations_too_long", 512),
        (
            [*ASKED, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
            "conversations_not_exact",
            None,
        ),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}, *TURNS[-1:]],
            "conversations_not_rendered",
            None,
        ),
    ],
)
def test_a_conversation_without_exact_tokens_is_refused(tmp_path, chat, messages, cause, limit):
    example = example_of(tmp_path, {"messages": messages, "agent": "writer"})
    with pytest.raises(UnusableExampleError, match=r"data\.jsonl:1: message \d") as raised:
        rendered(example, Chat(policy=chat.policy, render=chat.render, limit=limit))
    assert raised.value.cause == cause


def test_a_template_that_rewrites_the_prompt_is_refused(tmp_path, chat):
    def render(messages, tools):
        return [len(messages), *chat.render(messages, tools)]

    example = example_of(tmp_path, {"messages": TURNS[:3], "tools": TOOLS})
    with pytest.raises(UnusableExampleError, match="differently from its prompt"):
        rendered(example, Chat(policy=chat.policy, render=render, limit=None))


async def test_the_loss_is_the_mean_cross_entropy_over_the_answers(
    run_engine, chat, tmp_path, recompute
):
    rows = [
        {"messages": TURNS, "tools": TOOLS, "agent": "writer"},
        {
            "input": {"messages": [*ASKED, *TURNS[6:8]]},
            "preferred_output": [{"role": "assistant", "content": "best"}],
            "non_preferred_output": [{"role": "assistant", "content": "worst"}],
        },
    ]
    algorithm = SFT(
        SFTOptions(data=[str(write(tmp_path / "d.jsonl", *rows))], agent="writer", batch_size=2)
    )
    assert isinstance(algorithm, Demonstrator)
    setup = AlgorithmSetup(name="sft", loss_factory=CrossEntropy, lr=0)
    async with run_engine([chat.policy], setup) as engine:
        groups, losses = await algorithm.demonstrate(0, {"trained": chat.policy}, engine, seed=0)
        (batch,), _ = Batcher(algorithm, forest).build(groups, step=0)
        metrics = (await engine.update(batch)).metrics
    logprobs = [
        value
        for group in groups
        for call in calls_of(group)
        for value in recompute(chat.policy.model, list(call.prompt_ids), list(call.response_ids))
    ]
    assert not losses.counts
    assert len(logprobs) == len(batch.targets)
    assert metrics["loss"] == pytest.approx(-sum(logprobs) / len(logprobs), rel=1e-4)


@pytest.fixture
def train(tmp_path, model_path):
    def run(data, *, name="run", steps=12, resume=False, **algorithm):
        return agl.train(
            agents=["writer"],
            model=model_path,
            algorithm="sft",
            config={
                "directory": str(tmp_path / "runs"),
                "name": name,
                "engine": {"name": "torch", "device": "cpu", "threads": 1},
                "algorithm": {"data": [str(data)], "lr": 3e-3, "batch_size": 2, **algorithm},
                "train": {"steps": steps, "checkpoint_every": 12, "resume": resume},
            },
            progress=False,
        )

    return run


def test_a_run_without_agent_and_tasks_learns_the_conversations(tmp_path, train):
    rows = [{"messages": [*ASKED, {"role": "assistant", "content": text}]} for text in ("ab", "ab")]
    report = train(write(tmp_path / "data.jsonl", *rows))
    losses = [step.metrics["loss"] for step in report.steps]
    assert losses[-1] < 0.2 * losses[0]
    assert report.steps[0].rollouts == 0
    assert report.rows.by_agent == {"writer": 24}
    assert report.lost == {}


def test_a_resumed_run_takes_the_conversations_that_the_whole_run_takes(tmp_path, train):
    texts = ("ab", "cd", "ef", "gh", "ij")
    rows = [{"messages": [*ASKED, {"role": "assistant", "content": text}]} for text in texts]
    data = write(tmp_path / "data.jsonl", *rows)
    whole = train(data, name="whole", steps=4)
    train(data, name="parts", steps=2)
    parts = train(data, name="parts", steps=4, resume=True)
    assert [step.metrics["loss"] for step in parts.steps] == pytest.approx(
        [step.metrics["loss"] for step in whole.steps]
    )
    assert parts.policies["trained"]["sha256_after"] == whole.policies["trained"]["sha256_after"]


def test_conversations_that_cannot_be_trained_are_counted_on_request(tmp_path, train):
    rows = [
        {"messages": [*ASKED, {"role": "assistant", "content": "ab"}]},
        {"messages": [*ASKED, {"role": "assistant", "content": "a", "weight": 0}]},
        {"messages": [*ASKED, {"role": "assistant", "content": "a" * 600}]},
        {"messages": [*ASKED, *TURNS[2:3], {"role": "assistant", "content": "a"}]},
    ]
    data = write(tmp_path / "data.jsonl", *rows)
    report = train(data, unusable="drop", batch_size=4)
    assert report.lost == {
        "conversations_without_weight": 12,
        "conversations_too_long": 12,
        "conversations_not_exact": 12,
    }
    with pytest.raises(ConfigError, match=r"data\.jsonl:4: message 3 follows another assistant"):
        train(data, name="strict", batch_size=4)


def test_an_agent_that_is_not_trained_is_refused(tmp_path, train):
    row = {"messages": [*ASKED, {"role": "assistant", "content": "a"}], "agent": "editor"}
    with pytest.raises(ConfigError, match=r":1 is of agent 'editor'.*trains \['writer'\]"):
        train(write(tmp_path / "data.jsonl", row))
