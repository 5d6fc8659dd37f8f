"""What experiment trackers share: the names of a run's numbers, and a log of what was sent.

A library for trackers; it registers no hooks.
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
