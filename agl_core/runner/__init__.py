"""Runs agents on tasks: claim a rollout, call the agent under one deadline, store how it ended.

Reading order: `worker` (many attempts at once), `attempt` (one of them), `limits` (the deadline),
`failure` (why it failed), `heartbeat` (leases), `process` (the environment agents find).
"""

from agl_core.runner.attempt import Agent, Score
from agl_core.runner.scoring import NamedReward, Scorer, as_rewards
from agl_core.runner.worker import Runner, RunnerOptions

__all__ = ["Agent", "NamedReward", "Runner", "RunnerOptions", "Score", "Scorer", "as_rewards"]
