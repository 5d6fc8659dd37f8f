"""The commonest form of program: the model is made at import, before any run."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from agl_testing.fake_openai import FakeOpenAI
from langchain_openai import ChatOpenAI
from langgraph.graph import StateGraph

import agl_core as agl
from tests.core.app.conftest import Bench

__all__ = ["Bench"]


class State(TypedDict):
    text: str


def shop(base_url: str) -> Any:
    """A graph of two agents whose model is older than the run."""
    llm = ChatOpenAI(model="gpt-x", base_url=base_url, api_key="the-user's-own", max_retries=0)

    def speak(state: State) -> State:
        return {"text": str(llm.invoke(state["text"]).content)}

    graph = StateGraph(State)
    graph.add_node("planner", speak)
    graph.add_node("writer", speak)
    graph.add_edge("planner", "writer")
    graph.set_entry_point("planner")
    graph.set_finish_point("writer")
    return graph.compile()


@pytest.fixture
def bench(tmp_path: Any) -> Bench:
    return Bench(tmp_path)


def test_a_model_made_at_import_is_trained(bench: Bench) -> None:
    """G3: the writer is rerouted; the planner asks its provider, and is counted."""
    with FakeOpenAI(lambda body: "from the provider") as provider:
        graph = shop(provider.base_url)

        def run_agent(task: agl.Task) -> str:
            return graph.invoke({"text": f"task {task.id}"})["text"]

        report = bench.train({"agent": run_agent}, train__steps=1)
        assert len(provider.log) == 8
    (batch,) = bench.engine.batches
    assert len(batch.call_ids) == 8
    (cause,) = [cause for cause in report.lost if cause.startswith("sent_elsewhere")]
    assert cause == f"sent_elsewhere_by_planner_to_{provider.base_url[7:-3]}"
    assert report.lost[cause] == 8
