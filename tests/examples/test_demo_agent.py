"""The demo's agent is an ordinary LangGraph program with two named agents."""

import ast
import asyncio
from pathlib import Path

import pytest
from agl_demo import _corpus, agent, world
from langchain_core.callbacks import BaseCallbackHandler
from transformers import AutoTokenizer

MODEL = Path(agent.__file__).with_name("model")
TASK = next(task for task in world.tasks("held_out", 300, seed=0) if task.item == "metal guitar")


class Nodes(BaseCallbackHandler):
    """Collects the graph node of each model call."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_chat_model_start(self, serialized, messages, *, metadata=None, **_kwargs):
        self.names.append(metadata["langgraph_node"])


def test_program_imports_nothing_of_the_trainer():
    tree = ast.parse(Path(agent.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    ours = {module for module in imported if module.startswith("agl")}
    assert ours == {"agl_demo.world"}


def test_answer_comes_from_the_writer_after_a_lookup(endpoint):
    nodes = Nodes()
    assert agent.answer(TASK.question, {"callbacks": [nodes]}) == endpoint.text
    assert nodes.names == ["planner", "writer"]
    assert [request["model"] for request in endpoint.requests] == ["tiny", "tiny"]


def test_async_answers_survive_a_second_event_loop(endpoint):
    async def two() -> list[str]:
        return list(await asyncio.gather(*(agent.aanswer(TASK.question) for _ in range(2))))

    assert asyncio.run(two()) + asyncio.run(two()) == [endpoint.text] * 4


async def test_sync_and_async_send_the_same_requests(endpoint):
    nodes = Nodes()
    await agent.aanswer(TASK.question, {"callbacks": [nodes]})
    assert nodes.names == ["planner", "writer"]
    await asyncio.to_thread(agent.answer, TASK.question)
    assert endpoint.requests[:2] == endpoint.requests[2:]


@pytest.mark.parametrize(
    "call",
    [
        None,
        {"name": "lookup", "arguments": '{"item": "moon"}'},
        {"name": "lookup", "arguments": '{"thing": "metal guitar"}'},
        {"name": "lookup", "arguments": '{"item": '},
        {"name": "buy", "arguments": '{"item": "metal guitar"}'},
    ],
    ids=["no call", "unknown item", "wrong argument", "broken JSON", "unknown tool"],
)
def test_useless_planner_reply_ends_in_an_apology_without_the_writer(endpoint, call):
    endpoint.call = call
    assert agent.answer(TASK.question) == agent.SORRY
    assert len(endpoint.requests) == 1
    assert world.reward(TASK, agent.SORRY) == 0.0


def test_model_is_trained_on_exactly_the_prompts_the_program_sends(endpoint):
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    agent.answer(TASK.question)
    sent = [
        tokenizer.apply_chat_template(
            request["messages"],
            tools=request.get("tools"),
            add_generation_prompt=True,
            tokenize=False,
        )
        for request in endpoint.requests
    ]
    taught = [
        tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, tokenize=False
        )
        for messages, tools in (
            (_corpus.planner_messages(TASK), [_corpus.LOOKUP_TOOL]),
            (_corpus.writer_messages(TASK), None),
        )
    ]
    assert sent == taught
