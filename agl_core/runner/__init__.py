"""The runner: claims rollouts, calls the agent under one deadline, stores the outcome.

Reading order: `_worker` (many attempts), `_attempt` (one attempt and how it failed), `_limits` (its
deadline), `_heartbeat` (leases).
"""

from agl_core.runner._attempt import Agent, failure_of
from agl_core.runner._limits import UNBLOCK
from agl_core.runner._scoring import NamedReward, Scorer, as_rewards
from agl_core.runner._worker import Runner, RunnerOptions
from agl_core.runner.agent_loop import Stall

__all__ = [
    "UNBLOCK",
    "Agent",
    "NamedReward",
    "Runner",
    "RunnerOptions",
    "Scorer",
    "Stall",
    "as_rewards",
    "failure_of",
]
