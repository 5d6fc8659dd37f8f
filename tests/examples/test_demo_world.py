"""The demo's tasks are disjoint and stable, and its scorer is strict."""

import json
import random

import pytest
from agl_demo import world
from hypothesis import given
from hypothesis import strategies as st

TASK = world.PriceTask(
    question="How much is the red lamp?", item="red lamp", price=340, unit="euros"
)
RIGHT = [
    "The red lamp costs 340 euros.",
    "The red lamp is 340 euros.",
    "The price of the red lamp is 340 euros.",
    "You pay 340 euros for the red lamp.",
    "  The red lamp costs 340 euros.\n",
]
WRONG = {
    "It costs 340 euros.": {"item"},
    "The red  costs 340 euros.": {"item"},
    "The red lamps costs 340 euros.": {"item"},
    "Thatred lamp costs 340 euros.": {"item"},
    "The red lamp costs 34 euros.": {"number"},
    "The red lamp costs 3 340 euros.": {"number"},
    "The red lamp costs 340 340 euros.": {"number"},
    "The red lamp costs about 340 euros.": {"number"},
    "The red lamp costs 340euros.": {"number", "unit"},
    "The red lamp costs 340.5 euros.": {"number", "short"},
    "The red lamp costs 340.": {"unit"},
    "The red lamp costs 340 yen.": {"unit"},
    "The red lamp costs 340 euros dollars.": {"unit"},
    "The red lamp costs 340 euro.": {"unit"},
    "The red lamp costs 340 euros": {"short"},
    "The red lamp costs 340 euros..": {"short"},
    "Thank you! The red lamp costs 340 euros.": {"short"},
    "The red lamp costs 340 euros. Please come back soon.": {"short"},
    "The red lamp costs -340 euros.": {"number", "short"},
    "Of course the price of the red lamp is 340 euros.": {"short"},
    "": {"item", "number", "unit", "short"},
}


@pytest.mark.parametrize("text", RIGHT)
def test_right_answer_is_right_in_every_part(text):
    assert all(world.score(TASK, text).values())
    assert world.reward(TASK, text) == 1.0


@pytest.mark.parametrize(("text", "faults"), WRONG.items())
def test_wrong_answer_names_its_faults(text, faults):
    assert {part for part, right in world.score(TASK, text).items() if not right} == faults
    assert len(world.wrong(TASK, text).split("; ")) == len(faults)
    assert world.reward(TASK, text) == 0.0


@given(st.text())
def test_any_text_is_scored(text):
    assert set(world.score(TASK, text)) == {"item", "number", "unit", "short"}


@given(st.sampled_from(["train", "held_out"]), st.integers(0, 2000), st.integers())
def test_tasks_are_seeded_prefixes_from_their_own_split(split, count, seed):
    drawn = world.tasks(split, count, seed=seed)
    assert len(drawn) == count
    assert drawn == world.tasks(split, count + 1, seed=seed)[:count]
    assert {task.item for task in drawn} <= set(world.ITEMS[split])
    for task in drawn[:20]:
        assert task.item in task.question
        assert (task.price, task.unit) == world.PRICES[task.item]


def test_no_held_out_item_is_ever_trained_on():
    rng = random.Random(0)
    held_out = set(world.ITEMS["held_out"])
    assert held_out.isdisjoint(world.ITEMS["train"])
    assert held_out.isdisjoint(world.practice_task(rng).item for _ in range(5000))


def test_every_held_out_item_is_asked_before_one_repeats():
    drawn = world.tasks("held_out", len(world.ITEMS["held_out"]), seed=3)
    assert len({task.item for task in drawn}) == len(drawn)


def test_practice_prices_are_not_the_price_list():
    rng = random.Random(0)
    drawn = [world.practice_task(rng) for _ in range(500)]
    listed = sum((task.price, task.unit) == world.PRICES[task.item] for task in drawn)
    assert listed < 10


def test_shop_is_the_same_on_every_machine():
    first = world.tasks("held_out", 2, seed=1)
    assert first == [
        world.PriceTask("How much is the metal guitar?", "metal guitar", 98, "pounds"),
        world.PriceTask("What does the long broom cost?", "long broom", 22, "yen"),
    ]


def test_lookup_reports_item_and_price():
    item, (price, unit) = next(iter(world.PRICES.items()))
    assert json.loads(world.lookup_price(item)) == {"item": item, "price": f"{price} {unit}"}


@pytest.mark.parametrize("item", ["", "moon", "red", "Red Lamp"])
def test_lookup_of_an_unknown_item_names_it(item):
    with pytest.raises(ValueError, match=f"no item called {item!r}"):
        world.lookup_price(item)
