"""Directories of runs, as a training leaves them, without running one."""

from __future__ import annotations

import json

from agl_prompts import Study, StudyOptions

from agl_core.training.checkpoint import CheckpointState
from agl_core.types.json_text import json_text
from tests.trainers.prompts.fakes import TEXT, FakePhase, prompt

LONGER = "Answer {question} in one sentence."
KIND = "Kindly answer {question}."
SCORES = {TEXT: 0.25, LONGER: 0.5, KIND: 0.75}


class WrittenRun:
    """A run whose phases propose given texts, and evaluate them on all validation tasks."""

    def __init__(self, directory, **config):
        self.directory = directory
        self.number = 0
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config))

    async def phase(self, proposed, *, incumbent=TEXT, end=True, optimizer="fake", prompts=None):
        """Run a phase: pairs of a prompt's text and the text of its parent."""
        phase = FakePhase(
            self.directory / "prompts",
            prompts=prompts or {"writer": prompt(incumbent)},
            score=lambda rollout: SCORES[rollout.candidate["writer"]],
        )
        phase.number, phase.optimizer, self.number = self.number, optimizer, self.number + 1
        study = Study(phase, StudyOptions())
        await study.evaluate([(study.incumbent, study.val)], split="val")
        for text, parent in proposed:
            made = study.propose({"writer": text}, parent={"writer": parent}, why=f"from {parent}")
            await study.evaluate([(made, study.val)], split="val")
        if end:
            study.result(study.best, "")
        await study.close()
        return phase

    def checkpoint(self, step, **prompts):
        """Write a checkpoint without weights."""
        folder = self.directory / "checkpoints" / f"step-{step:06}"
        folder.mkdir(parents=True)
        state = CheckpointState(
            step=step, config_digest="", versions={}, sha256_before={}, prompts=prompts
        )
        (folder / "state.json").write_bytes(json_text(state).encode())
        return folder

    def report(self, best):
        """Write a report that names the best checkpoint where it was on another machine."""
        report = {"run_id": "run", "directory": "/elsewhere/run", "best": f"/elsewhere/{best}"}
        (self.directory / "report.json").write_text(json.dumps(report))
