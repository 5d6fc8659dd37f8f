"""Prompt optimisation by the package ``gepa``: reflective edits, Pareto selection of parents.

`Gepa` runs `gepa.optimize` in a thread through gepa's own adapter interface. Rollouts, budget,
guards, journal and editor are those of `agl_prompts.Study`.
"""

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_gepa._optimizer import Gepa as Gepa
    from agl_gepa._options import GepaOptions as GepaOptions
else:
    __getattr__, __dir__, __all__ = late(__name__)
