"""The prompts of a version that a run tried, or of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agl_prompts import history_of
from agl_stores import best_checkpoint, is_checkpoint, run_directory

from agl_core.config import RunConfig
from agl_core.errors import ConfigError
from agl_core.training import read_state
from agl_core.types import PromptTemplate


def prompts_of(config: RunConfig, version: str) -> dict[str, PromptTemplate]:
    """Return the tuned prompts of a version of a run, or the prompts of a checkpoint.

    Args:
        config: The run's configuration.
        version: A number of ``agl prompts``, ``before``, ``best``, or a checkpoint's directory.

    Raises:
        ConfigError: there is no such version, or the configuration does not have its prompts.
        TrainingError: the checkpoint is damaged.
    """
    if is_checkpoint(Path(version)):
        return dict(read_state(Path(version)).prompts)
    directory = Path(config.directory) / config.name
    history = history_of(directory)
    if history is None:
        raise ConfigError(
            f"Run {str(directory)!r} has tuned no prompts, so there is no version {version!r}; name "
            f"the run whose prompts to use, or one of its checkpoints"
        )
    before = history.texts(1)
    texts = history.texts(history.find(version))
    unknown = sorted(texts.keys() - config.prompts.keys())
    if unknown:
        raise ConfigError(
            f"The run tuned prompts {unknown}, which its configuration does not have; it has "
            f"{sorted(config.prompts)}"
        )
    return {name: _template(config, name, text, before) for name, text in texts.items()}


def _template(config: RunConfig, name: str, text: str, before: Mapping[str, str]) -> PromptTemplate:
    section = config.prompts[name]
    # A captured prompt begins as the text that the program sends.
    known = before[name] if section.captured else None
    return PromptTemplate(
        template=text, agents=tuple(section.agents), known=known, tool=section.tool
    )


def checkpoint_at(target: str) -> Path:
    """Return a checkpoint: the given one, or the best one of a run.

    Args:
        target: Directory of a checkpoint or a run, or a run's name.

    Raises:
        ConfigError: it is neither, or the run has no checkpoint.
    """
    if is_checkpoint(Path(target)):
        return Path(target)
    directory = run_directory(target)
    found = best_checkpoint(directory)
    if found is None:
        raise ConfigError(f"Run {str(directory)!r} has no checkpoint: nothing was learned so far")
    return found
