"""The runner: claims rollouts, calls the agent under one deadline, stores the outcome.

Reading order: `worker` (many attempts), `attempt` (one attempt and how it failed), `limits` (its
deadline), `heartbeat` (leases), `fleet` (worker processes).
"""

from agl_core.runner.agent_loop import Stall
from agl_core.runner.attempt import Agent, Score, failure_of
from agl_core.runner.limits import UNBLOCK
from agl_core.runner.scoring import NamedReward, Scorer, as_rewards
from agl_core.runner.worker import Runner, RunnerOptions

__all__ = [
    "UNBLOCK",
    "Agent",
    "NamedReward",
    "Runner",
    "RunnerOptions",
    "Score",
    "Scorer",
    "Stall",
    "as_rewards",
    "failure_of",
]
