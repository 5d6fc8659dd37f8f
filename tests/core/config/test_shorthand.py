"""A table of the engine's name stands for its table below ``[engine]``."""

from __future__ import annotations

import pytest

from agl_core._builtin import load_plugins
from agl_core.app.names import check_sections
from agl_core.config.loader import resolve
from agl_core.errors import ConfigError


def options(data, overrides=()):
    return resolve(data, overrides).engine.options


@pytest.mark.parametrize("named", [{"algorithm": "deep"}, {"engine": "deep"}])
def test_a_table_of_the_engines_or_the_algorithms_name_is_the_engines(named):
    assert options({**named, "deep": {"a": {"b": 1}}}) == {"deep": {"a": {"b": 1}}}


def test_both_tables_are_read_together():
    data = {"engine": {"name": "deep", "x": 1, "deep": {"a": {"b": 1}}}, "deep": {"a": {"c": 2}}}
    assert options(data) == {"x": 1, "deep": {"a": {"b": 1, "c": 2}}}


@pytest.mark.parametrize(
    ("data", "override"),
    [
        ({"engine": "deep", "deep": {"a": {"b": 1}}}, "engine.deep.a.c=2"),
        ({"engine": {"name": "deep", "deep": {"a": {"b": 1}}}}, "deep.a.c=2"),
    ],
)
def test_an_override_may_use_the_other_name(data, override):
    assert options(data, [override]) == {"deep": {"a": {"b": 1, "c": 2}}}


@pytest.mark.parametrize("inner", [2, {"c": 2}])
def test_two_values_of_one_option_are_refused(inner):
    data = {"engine": {"name": "deep", "deep": {"a": {"b": inner}}}, "deep": {"a": {"b": 1}}}
    with pytest.raises(ConfigError, match=r"deep\.a\.b = 1, but engine\.deep\.a\.b = .*one of"):
        resolve(data)


def test_saying_the_same_twice_is_fine():
    data = {"engine": {"name": "deep", "deep": {"a": 1}}, "deep": {"a": 1}}
    assert options(data) == {"deep": {"a": 1}}


def test_a_table_of_another_name_is_unknown():
    with pytest.raises(ConfigError, match="unknown key 'other'"):
        check_sections(resolve({"engine": "deep", "other": {}}), load_plugins())
