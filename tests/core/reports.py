"""What a short run reports."""

from __future__ import annotations

from agl_core.types import Estimate, Evaluation, Report, StepReport

EVALUATION = Evaluation(
    step=2,
    score=Estimate(mean=0.5, low=0.25, high=0.75, n=8),
    pass_at_k={4: Estimate(mean=0.9, low=0.8, high=1.0, n=8)},
    failed={"engine": 1},
)
STEPS = [
    StepReport(
        step=number,
        steps=2,
        reward=0.25 * number,
        rollouts=8,
        calls=16,
        tokens=400,
        failures={"agent": number},
        lost={"reward_unknown_call": 1},
        wall_s=2.0,
    )
    for number in (1, 2)
]
REPORT = Report(
    run_id="run",
    directory="agl_runs/run",
    steps=STEPS,
    evaluations=[EVALUATION],
    lost={"late": 3},
    calls=32,
    wall_s=4.0,
    best="agl_runs/run/checkpoints/2-é",
)
