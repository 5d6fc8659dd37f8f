"""Which tasks a step trains on."""

import pytest

from agl_core.errors import ConfigError
from agl_core.training.rollouts import TaskSampler, derive_seed
from agl_core.types import Task


def _tasks(count: int) -> list[Task]:
    return [Task(id=str(index)) for index in range(count)]


def test_a_step_does_not_depend_on_how_it_was_reached() -> None:
    walked = TaskSampler(_tasks(7), seed=3)
    for step in range(4):
        walked.step(step, size=3)
    jumped = TaskSampler(_tasks(7), seed=3)
    assert walked.step(4, size=3) == jumped.step(4, size=3)


def test_an_epoch_visits_every_task_once() -> None:
    sampler = TaskSampler(_tasks(6), seed=0)
    first_epoch = [task.id for step in range(3) for task in sampler.step(step, size=2)]
    assert sorted(first_epoch) == sorted(task.id for task in _tasks(6))


def test_epochs_and_seeds_shuffle_differently() -> None:
    sampler = TaskSampler(_tasks(50), seed=0)
    assert sampler.step(0, size=50) != sampler.step(1, size=50)
    assert sampler.step(0, size=50) != TaskSampler(_tasks(50), seed=1).step(0, size=50)


def test_a_step_larger_than_the_data_set_goes_into_the_next_epoch() -> None:
    ids = [task.id for task in TaskSampler(_tasks(2), seed=0).step(0, size=5)]
    assert len(ids) == 5
    assert {ids.count("0"), ids.count("1")} == {2, 3}


def test_no_tasks_and_repeated_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        TaskSampler([], seed=0).step(0, size=1)
    with pytest.raises(ConfigError, match="'a' appears more than once"):
        TaskSampler([Task(id="a"), Task(id="a")], seed=0)


def test_seeds_are_the_same_everywhere_and_differ_by_every_part() -> None:
    assert derive_seed(0, "train", 1, "a", 0) == derive_seed(0, "train", 1, "a", 0)
    seeds = {
        derive_seed(0, "train", 1, "a", 0),
        derive_seed(1, "train", 1, "a", 0),
        derive_seed(0, "val", 1, "a", 0),
        derive_seed(0, "train", 2, "a", 0),
        derive_seed(0, "train", 1, "b", 0),
        derive_seed(0, "train", 1, "a", 1),
        derive_seed(0, "train", 1, "a0"),
    }
    assert len(seeds) == 7
    assert all(0 <= seed < 2**31 for seed in seeds)
