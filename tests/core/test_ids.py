from __future__ import annotations

import os
import random
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from agl_core import clocks
from agl_core.clocks import new_id


def test_ids_sort_in_the_order_they_were_made():
    made = [new_id("ro") for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_id_is_a_uuid7_of_the_present_behind_its_prefix():
    before = time.time_ns() // 1_000_000
    prefix, digits = new_id("at").split("_")
    parsed = uuid.UUID(hex=digits)
    assert prefix == "at"
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert before <= parsed.int >> 80 <= time.time_ns() // 1_000_000 + 1_000


def test_ids_of_threads_never_meet_and_sort_within_each_thread():
    def make(_):
        return [new_id("sp") for _ in range(2_000)]

    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(make, range(8)))
    assert len({one for batch in batches for one in batch}) == 16_000
    assert all(batch == sorted(batch) for batch in batches)


def test_clock_set_back_does_not_reverse_the_order(monkeypatch):
    first = new_id("ro")
    monkeypatch.setattr(clocks, "wall_ns", lambda: 1)
    assert first < new_id("ro") < new_id("ro")


def test_seeding_random_does_not_repeat_ids(monkeypatch):
    monkeypatch.setattr(clocks, "wall_ns", lambda: 1)
    made = []
    for _ in range(2):
        random.seed(7)
        monkeypatch.setattr(clocks, "_SOURCE", clocks._Source())
        made.append(new_id("ro"))
    assert made[0] != made[1]


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_draws_other_ids():
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(send, new_id("ro").encode())
        os._exit(0)
    os.waitpid(child, 0)
    other = os.read(receive, 64).decode()
    os.close(receive)
    os.close(send)
    assert other[-15:] != new_id("ro")[-15:]
    assert len(other) == len("ro_") + 32
