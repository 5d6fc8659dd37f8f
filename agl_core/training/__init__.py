"""Training: the loop that runs rollouts and updates weights from ended attempts.

Reading order: `loop` (phases), `steps` (steps of an algorithm), `rollouts` (tasks and rollouts of a step), `groups` (the
groups for baselines), `advantages` and `algorithms` (credit), `_batcher` (the engine's batches),
`evaluate` (scores on held-out tasks), `_tuning` (prompts), `checkpoint` (saved weights and state).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_core.training._batcher import Batcher as Batcher
    from agl_core.training._batcher import group_minibatches as group_minibatches
    from agl_core.training._tuning import TuningSetup as TuningSetup
    from agl_core.training.advantages import Weighting as Weighting
    from agl_core.training.advantages import broadcast as broadcast
    from agl_core.training.advantages import over_trained as over_trained
    from agl_core.training.advantages import reinforce_advantages as reinforce_advantages
    from agl_core.training.checkpoint import checkpoint_of as checkpoint_of
    from agl_core.training.checkpoint import config_digest as config_digest
    from agl_core.training.checkpoint import read_state as read_state
    from agl_core.training.checkpoint import verify as verify
    from agl_core.training.evaluate import estimate as estimate
    from agl_core.training.evaluate import outcomes as outcomes
    from agl_core.training.groups import failure_of as failure_of
    from agl_core.training.groups import group_attempts as group_attempts
    from agl_core.training.rollouts import RolloutPlan as RolloutPlan
    from agl_core.training.rollouts import RolloutSource as RolloutSource
    from agl_core.training.rollouts import TaskSampler as TaskSampler
    from agl_core.training.rollouts import derive_seed as derive_seed
    from agl_core.training.rollouts import make_resources as make_resources
else:
    __getattr__, __dir__, __all__ = late(__name__)
