"""The check of the installed gepa's API."""

from __future__ import annotations

import inspect
from dataclasses import fields
from importlib.metadata import version
from typing import Any, Final

import gepa

from agl_core.errors import PluginError, pip_line

ARGUMENTS: Final = (
    "seed_candidate",
    "trainset",
    "valset",
    "adapter",
    "reflection_lm",
    "reflection_prompt_template",
    "reflection_minibatch_size",
    "candidate_selection_strategy",
    "module_selector",
    "sampling_strategy",
    "acceptance_criterion",
    "skip_perfect_score",
    "perfect_score",
    "use_merge",
    "max_merge_invocations",
    "stop_callbacks",
    "logger",
    "track_best_outputs",
    "seed",
)
"""Arguments of `gepa.optimize` that are passed."""
FIELDS: Final = ("outputs", "scores", "trajectories", "num_metric_calls")
"""Fields of `gepa.EvaluationBatch` that are set."""


def check_gepa(package: Any = gepa) -> None:
    """Check that gepa has the arguments and fields that are used.

    Args:
        package: The package; for tests.

    Raises:
        PluginError: it lacks some; the message names them and the installed version.
    """
    accepted = inspect.signature(package.optimize).parameters
    has = {each.name for each in fields(package.EvaluationBatch)}
    missing = [f"optimize({name}=)" for name in ARGUMENTS if name not in accepted]
    missing += [f"EvaluationBatch.{name}" for name in FIELDS if name not in has]
    if missing:
        raise PluginError(
            f"The optimizer 'gepa' is written for another API than that of gepa "
            f"{version('gepa')}, which lacks {', '.join(missing)}: {pip_line('gepa')}"
        )
