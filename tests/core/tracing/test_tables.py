from __future__ import annotations

import gc
from contextvars import Context

from agl_core.tracing import Tables, current_scope, enter
from agl_core.types import Scope


class Toy:
    def __init__(self, recorder):
        self.recorder = recorder
        self.known = set()

    def __call__(self, opened):
        return opened or Scope(kind="agent", span_id="span", agent="toy")

    def __contains__(self, key):
        return key in self.known


def test_an_attempt_has_one_table_which_locates_its_scopes(make_context):
    tables = Tables("toy", Toy)
    context = make_context("1")
    table = tables.of(context)
    assert tables.of(context) is table
    assert table.recorder is context.recorder
    assert tables.of(make_context("2")) is not table
    with enter(context):
        assert current_scope().agent == "toy"


def test_a_key_is_found_in_its_attempt_in_another_and_in_none(make_context):
    tables = Tables("toy", Toy)
    first, second = make_context("1"), make_context("2")
    tables.of(first).known.add("a")
    for context in (first, second):
        with enter(context):
            assert tables.holding("a") is tables.of(first)
            assert tables.holding("b") is None
    assert Context().run(tables.holding, "a") is tables.of(first)


def test_where_two_attempts_know_a_key_that_of_this_one_is_found(make_context):
    tables = Tables("toy", Toy)
    contexts = [make_context("1"), make_context("2")]
    for context in contexts:
        tables.of(context).known.add("a")
    for context in contexts:
        with enter(context):
            assert tables.holding("a") is tables.of(context)


def test_an_attempt_that_ends_early_leaves_nothing(make_context):
    tables = Tables("toy", Toy)
    context = make_context("1")
    tables.of(context).known.add("a")
    del context
    gc.collect()
    assert tables.holding("a") is None
