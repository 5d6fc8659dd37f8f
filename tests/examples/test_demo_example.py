"""What the numbered examples share."""

from __future__ import annotations

from types import SimpleNamespace

from agl_demo import example, world

from agl_core.types import Task


def test_tasks_are_the_shops_and_held_out_ones_are_of_other_items() -> None:
    train, held_out = example.train_tasks(), example.held_out_tasks()
    assert (len(train), len(held_out)) == (200, 100)
    assert len({task.id for task in [*train, *held_out]}) == 300
    assert {task.input["item"] for task in train} <= set(world.ITEMS["train"])
    assert {task.input["item"] for task in held_out} <= set(world.ITEMS["held_out"])
    assert example.train_tasks() == train


def test_the_reward_is_for_answers_that_are_right_in_every_part() -> None:
    task: Task = example.held_out_tasks()[0]
    right = f"The {task.input['item']} costs {task.input['price']} {task.input['unit']}."
    wrong = right.replace(str(task.input["price"]), str(task.input["price"] + 1))
    assert [example.reward(task, text, None) for text in (right, wrong)] == [1.0, 0.0]


def test_a_run_is_shown_in_three_lines(capsys) -> None:
    scores = [SimpleNamespace(score=SimpleNamespace(mean=mean)) for mean in (0.25, 0.875)]
    report = SimpleNamespace(
        evaluations=scores, calls=7, lost={}, directory="runs/one", export=lambda path: path
    )
    example.show(report)
    assert capsys.readouterr().out.splitlines() == [
        "held-out tasks answered right: 0.25 before, 0.88 after",
        "model calls: 7, lost by cause: nothing",
        "weights: runs/one/weights",
    ]
