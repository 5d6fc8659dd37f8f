"""One phase of a run as an optimiser sees it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from agl_prompts import is_sent

from agl_core.errors import ConfigError
from agl_core.interfaces import Candidate, PromptOutcome, PromptRollout, TunedPrompt
from agl_core.training import TuningSetup, derive_seed
from agl_core.types import Losses, PromptTemplate, Task, any_matches
from agl_tuning._outcomes import Outcomes
from agl_tuning._runs import KeyedRollout, Runs, digest_of

_NOT_FOUND: Final = "prompts_not_found"
"""Cause of loss: calls of a prompt's agents that do not have its text."""
_ENOUGH_CALLS: Final = 16
"""Calls with new texts, none of which has it, after which the phase ends."""


class RunPhase:
    """A `PromptPhase` whose rollouts run in the run's store and runners."""

    def __init__(
        self,
        setup: TuningSetup,
        number: int,
        prompts: Mapping[str, PromptTemplate],
        *,
        scope: str,
        after_id: str,
    ) -> None:
        """Create the phase of this number in the configuration.

        Args:
            setup: The run's components.
            number: 0-based number.
            prompts: Every prompt of the run, with the incumbent's text.
            scope: See `Runs`.
            after_id: See `Runs`.
        """
        section = setup.config.phases[number]
        self.number = number
        self.optimizer: str = section.optimizer or ""
        self.rollouts: int = section.rollouts or 0
        self.seed = setup.config.seed
        self.directory: Path = setup.directory
        self.prompts: Mapping[str, TunedPrompt] = {
            name: _tuned(name, prompt)
            for name, prompt in prompts.items()
            if prompt.agents and name in (section.prompts or prompts)
        }
        self.train: Sequence[Task] = setup.train
        self.val: Sequence[Task] = setup.val
        self.losses: Losses = setup.losses
        self._setup = setup
        self._all = dict(prompts)
        self._held_out = {_content(task) for task in setup.val}
        self._candidates: dict[str, Mapping[str, PromptTemplate]] = {}
        """Digest of a candidate to all prompts with its texts."""
        self._tenths = 0
        """Tenths of the budget whose end was shown."""
        self._sent: defaultdict[tuple[str, bool], Counter[str]] = defaultdict(Counter)
        """Numbers of calls, and of those found to have the text, of each prompt that is read with
        ``agl.resource``: of its incumbent (True) and of new texts."""
        self.runs = Runs(setup, scope=scope, after_id=after_id, progress=self._show)

    async def run(self, asked: Sequence[PromptRollout]) -> list[PromptOutcome]:
        outcomes = Outcomes(
            self._setup.adapter, self.losses, penalty=self._setup.config.rollout.penalty
        )
        results = await self.runs.run([self._wanted(each) for each in asked], outcomes.of)
        for prompt in self.prompts.values():
            if not prompt.captured:  # the gateway counts the others
                self._check_sent(prompt, asked, results)
        return results

    def stage(self, text: str) -> None:
        named = text.startswith(f"{self.optimizer}: ")
        self._setup.stage(text if named else f"{self.optimizer}: {text}")

    def _check_sent(
        self,
        prompt: TunedPrompt,
        asked: Sequence[PromptRollout],
        results: Sequence[PromptOutcome],
    ) -> None:
        """Check that the program sends a prompt that it reads with ``agl.resource``.

        Raises:
            ConfigError: no call had the incumbent, or none had a new text.
        """
        agents: set[str] = set()
        for rollout, outcome in zip(asked, results, strict=True):
            text = rollout.candidate.get(prompt.name, prompt.text)
            tally = self._sent[prompt.name, text == prompt.text]
            for call in outcome.record.calls:
                agents.add(call.record.known_as)
                if any_matches(prompt.agents, call.record.known_as):
                    tally["calls"] += 1
                    found = is_sent(text, call.messages)
                    tally["found"] += found
                    self.losses.add(_NOT_FOUND, not found)
        incumbent, new = (self._sent[prompt.name, is_incumbent] for is_incumbent in (True, False))
        succeeded = any(each.failure is None for each in results)
        fix = (
            f"Send what agl.resource({prompt.name!r}) returns, read in each rollout; or set captured "
            f"= true for the prompt that the program has itself"
        )
        if not (incumbent["found"] or new["found"]) and succeeded:
            raise ConfigError(
                f"prompts.{prompt.name}: none of {incumbent['calls'] + new['calls']} calls of "
                f"{[*prompt.agents]} has its text, so that tuning it would change nothing; agents "
                f"that made calls: {sorted(agents)}. {fix}"
            )
        if new["calls"] >= _ENOUGH_CALLS and not new["found"]:
            raise ConfigError(
                f"prompts.{prompt.name}: none of {new['calls']} calls of {[*prompt.agents]} has a new "
                f"text, although calls had the first one: the program keeps it. {fix}"
            )

    def _show(self, ended: int) -> None:
        tenths = 10 * ended // max(self.rollouts, 1)
        if tenths > self._tenths:
            self._tenths = tenths
            self.stage(f"{ended} of {self.rollouts} rollouts")

    def _wanted(self, rollout: PromptRollout) -> KeyedRollout:
        task = rollout.task
        digest = digest_of(dict(rollout.candidate))
        # Validation tasks that are training tasks too have one mode, so that scores are comparable.
        mode = "val" if _content(task) in self._held_out else "train"
        return KeyedRollout(
            key=rollout.key,
            task=task,
            mode=mode,
            group_id=f"prompts-{self.number}-{digest}-{task.id}",
            seed=derive_seed(
                self.seed, "prompts", self.number, digest_of(_content(task)), rollout.asking
            ),
            prompts=self._with(digest, rollout.candidate),
        )

    def _with(self, digest: str, candidate: Candidate) -> Mapping[str, PromptTemplate]:
        if digest not in self._candidates:
            texts = {name: text for name, text in candidate.items() if name in self._all}
            self._candidates[digest] = self._all | {
                name: msgspec.structs.replace(self._all[name], template=text)
                for name, text in texts.items()
            }
        return self._candidates[digest]


def _tuned(name: str, prompt: PromptTemplate) -> TunedPrompt:
    return TunedPrompt(
        name=name,
        agents=prompt.agents,
        text=prompt.template,
        placeholders=prompt.placeholders,
        captured=prompt.known is not None,
        tool=prompt.tool,
    )


def _content(task: Task) -> bytes:
    return msgspec.json.encode([task.id, task.input, task.expected], enc_hook=repr)
