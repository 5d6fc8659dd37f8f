"""Open the rooms of a run, try a few tasks in them, and say what was found."""

from __future__ import annotations

import time
from collections.abc import Mapping

from agl_core.app.doctor.agents import agents
from agl_core.app.doctor.attempts import attempts
from agl_core.app.doctor.backends import answering, decode, fresh, probe
from agl_core.app.doctor.checks import ask_checks
from agl_core.app.doctor.lengths import lengths
from agl_core.app.doctor.prefixes import prefixes
from agl_core.app.doctor.rewards import rewards
from agl_core.app.doctor.tools import tools
from agl_core.app.doctor.trial import Trial, TrialPlan, run_trial
from agl_core.app.rooms import Blueprint, Rooms, open_rooms
from agl_core.errors import ConfigError
from agl_core.interfaces import Backend
from agl_core.types import Diagnosis, Finding


async def diagnose(blueprint: Blueprint, plan: TrialPlan) -> Diagnosis:
    """Probe the backends and run the trial; nothing is trained.

    Args:
        blueprint: Of rooms that keep their records apart from the run's.
        plan: What to try.

    Raises:
        ConfigError: a name, path or option is wrong: no rooms can be opened.
    """
    started = time.perf_counter()
    async with open_rooms(blueprint, training=True, probe=False) as rooms:
        findings = await probe(rooms)
        calls = 0
        if answering(findings):
            trial = await run_trial(rooms, blueprint.config, plan)
            calls = len(trial.calls)
            findings += await _findings(rooms, trial)
            findings += ask_checks(blueprint.plugins, trial.records, blueprint.config)
        else:
            findings.append(_untried())
    return Diagnosis(
        run_id=blueprint.config.name,
        directory=str(blueprint.directory),
        tasks=len(plan.tasks),
        samples=plan.samples,
        calls=calls,
        findings=findings,
        wall_s=time.perf_counter() - started,
    )


async def _findings(rooms: Rooms, trial: Trial) -> list[Finding]:
    if rooms.algorithm is None:
        raise ConfigError("These rooms were opened to evaluate, not to train")
    backends: Mapping[str, Backend] = {
        policy.name: rooms.engine.backend(policy.name) for policy in rooms.policies
    }
    return [
        await decode(trial, backends),
        fresh(trial),
        *agents(trial),
        *tools(trial),
        *attempts(trial),
        *rewards(trial, rooms.algorithm),
        *await lengths(trial, backends),
        *await prefixes(trial, backends),
    ]


def _untried() -> Finding:
    return Finding(
        check="trial",
        severity="not checked",
        measured="No task was tried, because a backend does not answer.",
        fix="See backend.tokens.",
    )
