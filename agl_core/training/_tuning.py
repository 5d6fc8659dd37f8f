"""The components of a run that the tuner of its prompts uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agl_core.config import RunConfig
from agl_core.interfaces import Adapter
from agl_core.plugins import PluginManager
from agl_core.training.rollouts import RolloutSource
from agl_core.types import Losses, PromptTemplate, Resources, Task

Publish = Callable[[Mapping[str, PromptTemplate]], Awaitable[Resources]]
"""A function that publishes the served policies with these prompts, as a version of the resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSetup:
    """What a registered tuner gets, see the hook ``agl_register_tuners``."""

    config: RunConfig
    plugins: PluginManager
    source: RolloutSource
    adapter: Adapter
    publish: Publish
    stage: Callable[[str], None]
    """Shows the run's work to people who watch it."""
    losses: Losses
    """Counts of the run's losses, to which the tuner adds its own."""
    train: Sequence[Task]
    val: Sequence[Task]
    """Held-out tasks; the training tasks if the run has no others."""
    directory: Path
    """Directory of the run's prompt phases."""
