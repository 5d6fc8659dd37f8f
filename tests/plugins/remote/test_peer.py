"""Clocks of two machines that differ."""

from __future__ import annotations

import pytest
from agl_remote._peer import Skew
from hypothesis import given
from hypothesis import strategies as st

SECONDS = st.floats(0.0, 1e6)


def measured(ahead_s, there_s, back_s):
    skew = Skew()
    skew.now = lambda: there_s + back_s
    skew.measure(repr(there_s + ahead_s), asked=0.0)
    return skew.ahead_s


@given(st.floats(-1e6, 1e6), SECONDS, SECONDS)
def test_an_offset_is_never_overstated_and_misses_no_more_than_the_line_took(
    ahead_s, there_s, back_s
):
    found = measured(ahead_s, there_s, back_s)
    assert abs(found) <= abs(ahead_s) + 1e-6
    assert abs(found - ahead_s) <= there_s + back_s + 1e-6


@given(SECONDS, SECONDS)
def test_clocks_that_agree_are_not_corrected(there_s, back_s):
    assert measured(0.0, there_s, back_s) == 0.0


@pytest.mark.parametrize("told", [None, "", "soon", "nan", "-inf"])
def test_what_is_no_time_changes_nothing(told):
    skew = Skew()
    skew.ahead_s = 7.0
    skew.measure(told, asked=0.0)
    assert skew.ahead_s == 7.0
