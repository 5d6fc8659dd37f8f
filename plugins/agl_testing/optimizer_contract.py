"""The contract of prompt optimisers, on an objective whose optimum is known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from pydantic import BaseModel

from agl_core.config import load_object, validate
from agl_core.errors import ConfigError, TrainingError
from agl_core.interfaces import Optimizer, PromptRollout, Tuned
from agl_testing._guard import ContractSuite
from agl_testing._prompt_editors import editors, with_word
from agl_testing.prompt_world import (
    HARMFUL,
    INCUMBENT,
    NEUTRAL,
    SCRIPTED,
    SLOW,
    WANTED,
    Interrupted,
    PromptWorld,
    WorldSettings,
)

__all__ = ["OptimizerContract"]

_SEEDS: Final = range(10)


class OptimizerContract(ContractSuite):
    """Contract suite of prompt optimisers: subclass it and name the registered factory.

    ::

        class TestMine(OptimizerContract):
            factory = "my_package._mine:mine"
            model = "my_package._mine:MineOptions"
    """

    factory: ClassVar[str] = ""
    """``module:attribute`` of the registered factory."""
    model: ClassVar[str] = ""
    """``module:attribute`` of the options model."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Options besides the editor and critic, such as a small beam."""
    rollouts: ClassVar[int] = 200
    """Budget with which the optimum is reached: all wanted words in the prompt."""
    world: ClassVar[Mapping[str, int]] = {}
    """Numbers of tasks, such as ``{"train": 24}``, for an optimiser that needs more of them."""
    edits: ClassVar[bool] = True
    """Whether it calls an editor; False leaves out the rules about editors."""
    reply: ClassVar[str] = "```\n%s\n```"
    """Form of an editor's reply that it reads, with ``%s`` for the new prompt."""
    short: ClassVar[int] = 60
    """Budget of the interrupted phases, with which a few proposals are possible."""
    concurrency: ClassVar[int] = 1
    """Largest number of editor calls at a time."""
    false_improvements: ClassVar[int] = 1
    """Largest number of ten seeds in which a prompt that is no better may be chosen."""

    async def test_it_reaches_the_optimum(self, tmp_path: Path) -> None:
        world = self._world(tmp_path)
        tuned = await self._tune(world)
        assert world.true_score(tuned.texts) == pytest.approx(world.optimum), tuned.texts["writer"]
        assert tuned.after is not None
        assert tuned.before is not None
        assert tuned.after.mean > tuned.before.mean

    async def test_it_reports_what_it_used(self, tmp_path: Path) -> None:
        world = self._world(tmp_path)
        tuned = await self._tune(world)
        assert tuned.rollouts == world.finished
        assert sum(tuned.calls.values()) == world.edits
        assert tuned.candidates == len({_text(rollout) for rollout in world.ran})

    async def test_it_never_exceeds_its_budget(self, tmp_path: Path) -> None:
        refused = 0
        for rollouts in (*range(1, 64, 3), 97, 130):
            world = self._world(tmp_path / str(rollouts), rollouts=rollouts)
            refusal = await self._refusal(world)
            assert world.finished <= rollouts
            if refusal:
                refused += 1
                assert str(rollouts) in refusal, "the error does not name the budget"
                assert not world.ran, "a budget that is too small was used nevertheless"
        assert refused, "a budget of one rollout allows no proposal"

    async def test_it_says_how_many_proposals_the_budget_allows(self, tmp_path: Path) -> None:
        world = self._world(tmp_path)
        await self._tune(world)
        assert any("proposal" in stage for stage in world.stages), world.stages

    async def test_it_beats_random_edits(self, tmp_path: Path) -> None:
        """Compare with random edits that use the same number of rollouts."""
        found = random = 0.0
        for seed in _SEEDS:
            world = self._world(tmp_path / f"own-{seed}", seed=seed)
            found += world.true_score((await self._tune(world)).texts)
            other = self._world(tmp_path / f"random-{seed}", seed=seed)
            random += other.true_score({"writer": await _random_edits(other)})
        assert found > random

    async def test_it_keeps_the_best_and_not_the_last(self, tmp_path: Path) -> None:
        for seed in _SEEDS:
            world = self._world(tmp_path / str(seed), seed=seed, editor="wavering")
            tuned = await self._tune(world)
            ran = _complete(world)
            best = max(world.true_score({"writer": text}) for text in ran)
            assert world.true_score(tuned.texts) >= best - 0.1, (seed, tuned.texts)

    async def test_equal_prompts_are_rarely_called_better(self, tmp_path: Path) -> None:
        better = 0
        for seed in _SEEDS:
            world = self._world(tmp_path / str(seed), seed=seed, flat=True)
            better += (await self._tune(world)).texts["writer"] != INCUMBENT
        assert better <= self.false_improvements

    async def test_it_is_deterministic(self, tmp_path: Path) -> None:
        first = self._world(tmp_path / "1")
        second = self._world(tmp_path / "2")
        assert await self._tune(first) == await self._tune(second)
        assert [rollout.key for rollout in first.ran] == [rollout.key for rollout in second.ran]

    async def test_it_resumes_after_an_interruption_at_every_point(self, tmp_path: Path) -> None:
        whole = self._world(tmp_path / "whole", rollouts=self.short)
        expected = await self._tune(whole)
        for point in range(1, whole.events):
            first = self._world(tmp_path / str(point), rollouts=self.short, crash=point)
            with pytest.raises(Interrupted):
                await self._tune(first)
            resumed = self._world(tmp_path / str(point), rollouts=self.short)
            assert await self._tune(resumed) == expected, f"interrupted after {point} events"
            assert resumed.events == whole.events, f"repeated after {point} events"

    async def test_it_resumes_after_its_process_was_killed(self, tmp_path: Path) -> None:
        rollouts = self.short
        whole = self._world(tmp_path / "whole", rollouts=rollouts)
        expected = await self._tune(whole)
        point = whole.events * 2 // 3
        self._killed(tmp_path / "killed", point=point, rollouts=rollouts)
        resumed = self._world(tmp_path / "killed", rollouts=rollouts)
        assert resumed.events == point
        assert await self._tune(resumed) == expected
        assert resumed.events == whole.events
        again = self._world(tmp_path / "killed", rollouts=rollouts)
        assert await self._tune(again) == expected
        assert not again.ran, "an ended phase was run again"
        assert again.edits == whole.edits

    async def test_faults_of_the_infrastructure_do_not_change_the_order(
        self, tmp_path: Path
    ) -> None:
        """The engine fails in 30 % of the rollouts of prompts with one of the wanted words."""
        for seed in range(3):
            budget = 2 * self.rollouts
            world = self._world(
                tmp_path / str(seed), seed=seed, rollouts=budget, val=16, faults=0.3
            )
            tuned = await self._tune(world)
            assert WANTED[0] in tuned.texts["writer"], seed
            assert world.true_score(tuned.texts) == pytest.approx(world.optimum), seed
            assert world.faults
            assert sum(world.losses.counts.values()) > 0, "the failures are not counted"

    async def test_an_outage_ends_the_phase(self, tmp_path: Path) -> None:
        world = self._world(tmp_path, outage=True)
        with pytest.raises(TrainingError, match="overloaded"):
            await self._tune(world)
        assert world.finished < self.rollouts // 2, "the budget was spent on an outage"

    async def test_a_prompt_that_exceeds_deadlines_has_a_lower_score(self, tmp_path: Path) -> None:
        self._needs_editor()
        world = self._world(tmp_path, editor="slow")
        tuned = await self._tune(world)
        assert any(SLOW in _text(rollout) for rollout in world.ran), "no slow prompt ran"
        assert SLOW not in tuned.texts["writer"]

    @pytest.mark.parametrize("editor", ["nonsense", "nothing", "same"])
    async def test_an_editor_without_a_new_text_costs_no_rollouts(
        self, tmp_path: Path, editor: str
    ) -> None:
        world, tuned = await self._tune_in_vain(tmp_path, editor)
        assert tuned.reason, "nothing says why the phase ended"
        assert world.edits < self.rollouts

    @pytest.mark.parametrize("editor", ["huge", "drops", "invents"])
    async def test_a_candidate_that_must_not_run_is_refused_and_counted(
        self, tmp_path: Path, editor: str
    ) -> None:
        world, _ = await self._tune_in_vain(tmp_path, editor)
        assert sum(world.losses.counts.values()) > 0, "the refused candidates are not counted"

    async def test_braces_of_json_are_literal(self, tmp_path: Path) -> None:
        self._needs_editor()
        world = self._world(tmp_path, editor="braces")
        tuned = await self._tune(world)
        assert '{"a": 1}' in tuned.texts["writer"]
        assert world.true_score(tuned.texts) == pytest.approx(world.optimum)

    async def test_a_failed_edit_does_not_run_again(self, tmp_path: Path) -> None:
        """The editor writes one harmful prompt again and again."""
        self._needs_editor()
        world = self._world(tmp_path, editor="constant")
        tuned = await self._tune(world)
        harmful = [rollout for rollout in world.ran if HARMFUL[0] in _text(rollout)]
        assert tuned.texts == {"writer": INCUMBENT}
        assert len(harmful) <= 2 * (len(world.train) + len(world.val))

    async def test_an_editor_that_never_answers_is_an_error(self, tmp_path: Path) -> None:
        self._needs_editor()
        world = self._world(tmp_path, editor="down")
        with pytest.raises(TrainingError, match="the endpoint is down"):
            await self._tune(world)
        assert world.edits < 3 + self.concurrency, "it ends after three failures in a row"

    async def test_it_stops_after_three_editor_failures_in_a_row(self, tmp_path: Path) -> None:
        self._needs_editor()
        world = self._world(tmp_path, editor="failing")
        tuned = await self._tune(world)
        assert "the endpoint is down" in tuned.reason
        assert world.edits < 3 + 3 + self.concurrency
        best = max(world.true_score({"writer": text}) for text in _complete(world))
        assert world.true_score(tuned.texts) >= best - 0.1

    async def test_single_editor_failures_are_survived(self, tmp_path: Path) -> None:
        self._needs_editor()
        world = self._world(tmp_path, editor="unreliable")
        tuned = await self._tune(world)
        assert world.true_score(tuned.texts) > world.true_score({"writer": INCUMBENT})

    async def _tune_in_vain(self, directory: Path, editor: str) -> tuple[PromptWorld, Tuned]:
        """Tune with an editor whose texts must not run; check that only the incumbent ran."""
        self._needs_editor()
        world = self._world(directory, editor=editor)
        tuned = await self._tune(world)
        assert {_text(rollout) for rollout in world.ran} <= {INCUMBENT}
        assert tuned.texts == {"writer": INCUMBENT}
        return world, tuned

    def _needs_editor(self) -> None:
        if not self.edits:
            pytest.skip("it calls no editor")

    def _world(
        self, directory: Path, *, editor: str = "good", crash: int = -1, **settings: Any
    ) -> PromptWorld:
        given: dict[str, Any] = {"rollouts": self.rollouts, **self.world, **settings}
        answering = editors(self.reply)[editor]
        return PromptWorld(directory, WorldSettings(**given), editor=answering, crash=crash)

    async def _tune(self, world: PromptWorld) -> Tuned:
        optimizer = make_optimizer(self.factory, self.model, self.options, edits=self.edits)
        with world.active():
            return await optimizer.optimize(world)

    async def _refusal(self, world: PromptWorld) -> str:
        """Run the phase; return the message if its budget is refused."""
        try:
            await self._tune(world)
        except ConfigError as error:
            return str(error)
        return ""

    def _killed(self, directory: Path, *, point: int, rollouts: int) -> None:
        """Run the phase in a child process that is killed after a number of events."""
        spec = {
            "factory": self.factory,
            "model": self.model,
            "options": dict(self.options),
            "edits": self.edits,
            "reply": self.reply,
            "directory": str(directory),
            "point": point,
            "settings": {"rollouts": rollouts, **self.world},
        }
        child = subprocess.run(  # noqa: S603  our own module
            [sys.executable, "-m", "agl_testing._prompt_child", json.dumps(spec)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            check=False,
            text=True,
        )
        assert child.returncode == -signal.SIGKILL, child.stderr


def make_optimizer(
    factory: str, model: str, options: Mapping[str, Any], *, edits: bool
) -> Optimizer:
    """Make an optimiser with the scripted editor, as a run makes it from its configuration."""
    given = {**options, "editor": {"function": SCRIPTED}} if edits else dict(options)
    options_model: type[BaseModel] = load_object(model)
    make: Callable[[Any], Optimizer] = load_object(factory)
    return make(validate(options_model, given))


def _text(rollout: PromptRollout) -> str:
    return rollout.candidate.get("writer", INCUMBENT)


def _complete(world: PromptWorld) -> set[str]:
    """Return the prompts that ran on all validation tasks."""
    ran: dict[str, set[str]] = {}
    for rollout in world.ran:
        if rollout.task.id.startswith("val"):
            ran.setdefault(_text(rollout), set()).add(rollout.task.id)
    return {text for text, tasks in ran.items() if len(tasks) == len(world.val)}


async def _random_edits(world: PromptWorld) -> str:
    """Add random words to the best prompt so far, each evaluated on all validation tasks."""
    best, highest = INCUMBENT, -1.0
    text, left, number = INCUMBENT, world.rollouts, 0
    words = [*WANTED, *NEUTRAL, *HARMFUL]
    while left >= len(world.val):
        outcomes = await world.run(
            [
                PromptRollout(
                    candidate={"writer": text},
                    task=task,
                    key=f"{number}-{task.id}",
                    asking=0,
                )
                for task in world.val
            ]
        )
        left -= len(world.val)
        score = sum(outcome.score for outcome in outcomes)
        if score > highest:
            best, highest = text, score
        number += 1
        text = with_word(best, words[int(world.uniform("random", number) * len(words))])
    return best
