"""What ``agl doctor`` does: a few real tasks before any training, and what they show.

Reading order: `diagnose` (the whole), `trial` (run and adapt the attempts), `calls` (whose each
call is), then one module per thing that is looked at: `backends`, `agents`, `rewards`, `lengths`,
`prefixes` with `causes`, `attempts`, and `checks` for what plugins offer.
"""

from agl_core.app.doctor.diagnose import diagnose
from agl_core.app.doctor.trial import TrialPlan

__all__ = ["TrialPlan", "diagnose"]
