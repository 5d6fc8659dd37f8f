import time

import pytest

from agl_core.types import Attempt, Limits


@pytest.mark.parametrize(("deadline_in", "left"), [(5e3, 5e3), (-1e3, -1e3), (None, 2e3)])
def test_the_deadline_of_the_claim_counts_and_else_the_limit(deadline_in, left):
    deadline_at = time.time() + deadline_in if deadline_in is not None else 0.0
    attempt = Attempt(id="a", rollout_id="r", fence=1, worker="w", deadline_at=deadline_at)
    found = attempt.monotonic_deadline(Limits(timeout_s=2e3)) - time.monotonic()
    assert left - 600 < found <= left + 1e-3
