"""Conversion of an attempt's spans to training data: join, prefix tree, credit, selection.

A call or reward that does not become training data raises an error or is counted in
`AdaptedAttempt.losses`:

==============================  ==================================================================
cause                           meaning
==============================  ==================================================================
``superseded_tries``            earlier tries of a retried request
``calls_refused``               calls that the backend answered with an HTTP error
``calls_overflowed``            calls whose prompt did not fit into the model's context
``calls_incomplete``            calls cut off, in a failed attempt or of an untrained agent
``calls_unsent``                requests that failed before the gateway recorded them
``calls_inexact``               capture errors of untrained agents, whose calls need no tokens
``calls_untrainable``           selected agents' calls under ``trainable=False`` or a frozen policy
``calls_of_opponents``          selected agents' calls that a policy with a share answered
``calls_constrained``           calls sampled under a constraint their policy does not train on
``calls_without_agent``         calls without agent name and without tokens
``rewards_untrained``           rewards for an agent, run or call that is not trained
``rewards_of_dropped_calls``    rewards for a call that was dropped
``rewards_of_failed_attempts``  rewards that arrived before the attempt failed
``agents_without_reward``       trained agents without a reward, which are left out of their group
``choices_without_reward``      choices of an ``n > 1`` call that no reward named
==============================  ==================================================================

Names are imported on first use, so that a run starts before what its first attempt needs is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_core.adapters._adapter import TrajectoryAdapter as TrajectoryAdapter
    from agl_core.adapters._assemble import assemble as assemble
    from agl_core.adapters._images import images_of as images_of
    from agl_core.adapters._images import media as media
    from agl_core.adapters._join import JoinedAttempt as JoinedAttempt
    from agl_core.adapters._join import JoinedCall as JoinedCall
    from agl_core.adapters._join import aliases_of as aliases_of
    from agl_core.adapters._join import join as join
    from agl_core.adapters._select import AgentSelector as AgentSelector
    from agl_core.adapters._select import serving_policy as serving_policy
    from agl_core.adapters._tree import Sample as Sample
    from agl_core.adapters._tree import forest as forest
    from agl_core.adapters._tree import link as link
    from agl_core.adapters._tree import trajectories as trajectories
else:
    __getattr__, __dir__, __all__ = late(__name__)
