"""G15: whole runs that choose agents by role where they are named by seat."""

import asyncio

import pytest

import agl_core as agl
from agl_core.errors import ConfigError
from agl_core.plugins._manager import Source
from tests.core.app.conftest import speak

SEATS = ("1号", "2号", "3号")


async def game(task: agl.Task) -> dict[str, str]:
    """Two wolves and a villager, on other seats in each task."""
    villager = task.input % len(SEATS)
    said = {}
    for index, seat in enumerate(SEATS):
        agl.alias(seat, "villager" if index == villager else "wolf")
    for seat in SEATS:
        said[seat] = await speak(seat, f"speak {task.id}")
    return said


def wolves_say_yes(task: agl.Task, said: dict[str, str], attempt: agl.AttemptRecord) -> float:
    return float(sum(word == "yes" for word in said.values()))


class Groups:
    """Keeps what is trained."""

    def __init__(self) -> None:
        self.batches: list[agl.Batch] = []
        self.spans: list[agl.Span] = []

    @agl.hookimpl
    def agl_batch_built(self, batch, step) -> None:
        self.batches.append(batch)

    @agl.hookimpl
    def agl_trajectories_built(self, record, trajectories) -> None:
        self.spans += record.spans


def run(bench, **settings):
    seen = Groups()
    inputs = {"agent": game, "reward": wolves_say_yes, "tasks": [{"input": n} for n in range(3)]}
    app = bench.app(inputs, **settings)
    app._plugins.register(seen, Source(name="groups"))
    return asyncio.run(app.train()), seen


def test_agents_are_selected_and_reported_by_their_alias(bench) -> None:
    """G15: `agents=["wolf"]` trains two seats of each attempt, other ones in each task."""
    report, seen = run(bench, agents='["wolf"]', train__steps=2, train__tasks_per_step=3)
    assert report.lost.get("agents_absent", 0) == 0
    for batch in seen.batches:
        assert set(batch.agents) == {"wolf"}
        assert len(batch.agents) == 3 * 4 * 2
    calls = [span.call for span in seen.spans if span.call is not None]
    assert calls
    policies = {(call.alias, call.policy) for call in calls}
    assert policies == {("wolf", "trained"), ("villager", "frozen")}
    assert {call.agent for call in calls} == set(SEATS)
    assert all("wolf" not in str(call.messages) for call in calls)


def test_a_seat_that_has_an_alias_is_not_selected_by_its_name(bench) -> None:
    """G15: the error lists the aliases."""
    with pytest.raises(ConfigError, match=r"'1号' was not seen; seen were \['villager', 'wolf'\]"):
        run(bench, agents='["1号"]', train__steps=1)
