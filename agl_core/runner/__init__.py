"""The runner: claims rollouts, calls the agent under one deadline, stores the outcome.

Reading order: `_worker` (many attempts), `_attempt` (one attempt and how it failed), `_limits` (its
deadline), `_heartbeat` (leases).
"""

from agl_core.runner._agent_loop import Stall as Stall
from agl_core.runner._attempt import Agent as Agent
from agl_core.runner._attempt import failure_of as failure_of
from agl_core.runner._limits import UNBLOCK as UNBLOCK
from agl_core.runner._scoring import NamedReward as NamedReward
from agl_core.runner._scoring import Scorer as Scorer
from agl_core.runner._scoring import as_rewards as as_rewards
from agl_core.runner._worker import Runner as Runner
from agl_core.runner._worker import RunnerOptions as RunnerOptions
