"""The example with rollouts ahead of their step and replicas on devices of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.verl.test_end_to_end import started, until

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 6
BOUND = 2


def test_rollouts_run_while_the_policy_trains_and_are_no_older_than_the_bound(
    tmp_path: Path,
) -> None:
    apart = [f"verl.actor_rollout_ref.rollout.{key}=1" for key in ("nnodes", "n_gpus_per_node")]
    bound = f"train.max_staleness={BOUND}"
    with started(tmp_path, f"train.steps={STEPS}", bound, *apart) as process:
        told = until(process, "weights ")
        assert process.wait() == 0, "".join(told)

    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert all(step["rollouts"] == 32 for step in report["steps"])
    stale = [step["metrics"]["staleness"] for step in report["steps"]]
    assert stale[0] == 0
    assert max(stale) > 0
    assert all(age <= min(BOUND, step) for step, age in enumerate(stale))
    assert report["rows"]["by_agent"].keys() == {"writer"}
    trained = next(one for one in report["policies"].values() if one["trainable"])
    assert trained["version"] == STEPS
