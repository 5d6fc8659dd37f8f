"""A trainer that leaves its attempts to other processes."""

from __future__ import annotations

import pytest

from agl_core.errors import ConfigError
from tests.core.app.conftest import Bench, says_yes

ELSEWHERE = {"rollout__local": False, "gateway__url": "http://127.0.0.1:9"}


def test_a_store_of_one_process_cannot_be_shared(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"store\.name = 'memory' is open in one process only"):
        bench.app(**ELSEWHERE)


def test_others_need_a_gateway_that_they_reach(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"gateway\.url is not set"):
        bench.app(rollout__local=False, store__name="sqlite")


async def test_the_trainer_needs_neither_agent_nor_rewards_then(bench: Bench) -> None:
    """They may need what is not installed where it runs."""
    bench.app({"agent": None, "reward": None}, store__name="sqlite", **ELSEWHERE)
    with pytest.raises(ConfigError, match="There is no agent to run"):
        bench.app({"agent": None})


async def test_an_evaluation_apart_runs_its_attempts_itself(bench: Bench) -> None:
    inputs = {"val_tasks": [{"input": n} for n in range(3)], "reward": says_yes}
    app = bench.app(inputs, store__name="sqlite", **ELSEWHERE)
    assert (await app.evaluate()).score.n == 3


async def test_an_evaluation_keeps_its_records_here_where_training_keeps_them_on_a_server(
    bench: Bench,
) -> None:
    inputs = {"val_tasks": [{"input": n} for n in range(3)], "reward": says_yes}
    app = bench.app(inputs, store__name="http", store__url="http://127.0.0.1:9")
    assert (await app.evaluate()).score.n == 3
    assert list(bench.directory.rglob("eval/store.db"))
