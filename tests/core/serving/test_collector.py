from __future__ import annotations

import gc

import pytest

from agl_core.serving.collector import rare_collections


def test_collections_are_rare_inside_and_as_before_outside():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(KeyboardInterrupt), rare_collections():  # noqa: PT012
        assert gc.isenabled()
        assert gc.get_threshold()[0] > 10 * before[0]
        assert gc.get_freeze_count() > frozen
        raise KeyboardInterrupt
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
