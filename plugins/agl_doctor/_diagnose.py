"""Open the components of a run, run a few tasks, and report the findings."""

from __future__ import annotations

import time

import msgspec

from agl_core.app import App
from agl_core.types import Finding
from agl_doctor._agents import agents
from agl_doctor._attempts import attempts
from agl_doctor._backends import answering, decode, fresh, probe
from agl_doctor._checks import ask_checks
from agl_doctor._evidence import Evidence, adapt
from agl_doctor._lengths import lengths
from agl_doctor._prefixes import prefixes
from agl_doctor._rewards import rewards
from agl_doctor._tools import tools
from agl_doctor._trial import Trial, open_trial

FOLDER = "doctor"
"""Folder in the run's directory for the records of the trial."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a trial run of a few tasks."""

    run_id: str
    directory: str
    """The directory of the trial's records, which are separate from the run's."""
    tasks: int
    samples: int
    """Attempts per task."""
    calls: int
    """Number of recorded model calls."""
    findings: list[Finding]
    wall_s: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether any finding is an error."""
        return any(finding.severity == "error" for finding in self.findings)


async def diagnose(app: App, *, tasks: int = 2, samples: int | None = None) -> Diagnosis:
    """Run the first training tasks without training and report problems.

    The records are written to ``<run>/doctor``, separate from those of the run.

    Args:
        app: The run.
        tasks: Number of tasks to run.
        samples: Attempts per task, at least two. None: the group's size, at most four.

    Raises:
        ConfigError: a name, path or option is wrong, so the components cannot be opened.
    """
    started = time.perf_counter()
    async with open_trial(app, tasks=tasks, samples=samples, folder=FOLDER) as trial:
        findings = await probe(trial)
        calls = 0
        if answering(findings):
            evidence = adapt(trial, await trial.run())
            calls = len(evidence.calls)
            findings += await _findings(trial, evidence)
            findings += ask_checks(trial.plugins, evidence.records, trial.config)
        else:
            findings.append(_untried())
    return Diagnosis(
        run_id=trial.config.name,
        directory=str(trial.directory),
        tasks=len(trial.tasks),
        samples=trial.samples,
        calls=calls,
        findings=findings,
        wall_s=time.perf_counter() - started,
    )


async def _findings(trial: Trial, evidence: Evidence) -> list[Finding]:
    local = [policy.name for policy in trial.policies if not policy.base_url]
    backends = {name: trial.backend(name) for name in local}
    return [
        await decode(evidence, backends),
        fresh(evidence),
        *agents(evidence),
        *tools(evidence),
        *attempts(evidence),
        *rewards(evidence, trial.algorithm),
        *await lengths(evidence, backends),
        *await prefixes(evidence, backends),
    ]


def _untried() -> Finding:
    return Finding(
        check="trial",
        severity="not checked",
        measured="No task was tried, because a backend does not answer.",
        fix="See backend.tokens.",
    )
