"""Experiment trackers: calling them, and what they share.

`_threads` calls the trackers of a run, `plugin` registers it as the observer ``trackers``. The rest is
a library for trackers: the names of a run's numbers, and a log of what was sent.
"""

from agl_tracking._numbers import (
    evaluation_numbers,
    flat_config,
    outcome_facts,
    outcome_numbers,
    step_numbers,
)
from agl_tracking._sent_log import SentLog

__all__ = [
    "SentLog",
    "evaluation_numbers",
    "flat_config",
    "outcome_facts",
    "outcome_numbers",
    "step_numbers",
]
