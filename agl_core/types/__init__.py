"""The records that move through the house, in the order they appear."""

from agl_core.types.batch import Batch
from agl_core.types.finding import Diagnosis, Finding, Severity
from agl_core.types.packed import Floats, Ints, from_list, pack_floats, pack_ints, to_list
from agl_core.types.resources import LLM, Policy, PromptTemplate, Resources
from agl_core.types.reward import ATTEMPT, Reward, RewardTarget, finite_number
from agl_core.types.rollout import (
    Attempt,
    AttemptStatus,
    Claim,
    Failure,
    FailureKind,
    Limits,
    Mode,
    Rollout,
    RolloutQuery,
    RolloutStatus,
)
from agl_core.types.run import Estimate, Evaluation, Losses, Report, StepReport, Update
from agl_core.types.scope import Scope, ScopeKind
from agl_core.types.span import (
    Choice,
    Ingest,
    LogprobsMode,
    ModelCall,
    Sampling,
    Span,
    SpanKind,
    SpanStatus,
)
from agl_core.types.task import Task, as_task
from agl_core.types.trajectory import (
    AgentReturn,
    CallCredit,
    Image,
    Trajectory,
    TrajectoryGroup,
    Triplet,
)

__all__ = [
    "ATTEMPT",
    "LLM",
    "AgentReturn",
    "Attempt",
    "AttemptStatus",
    "Batch",
    "CallCredit",
    "Choice",
    "Claim",
    "Diagnosis",
    "Estimate",
    "Evaluation",
    "Failure",
    "FailureKind",
    "Finding",
    "Floats",
    "Image",
    "Ingest",
    "Ints",
    "Limits",
    "LogprobsMode",
    "Losses",
    "Mode",
    "ModelCall",
    "Policy",
    "PromptTemplate",
    "Report",
    "Resources",
    "Reward",
    "RewardTarget",
    "Rollout",
    "RolloutQuery",
    "RolloutStatus",
    "Sampling",
    "Scope",
    "ScopeKind",
    "Severity",
    "Span",
    "SpanKind",
    "SpanStatus",
    "StepReport",
    "Task",
    "Trajectory",
    "TrajectoryGroup",
    "Triplet",
    "Update",
    "as_task",
    "finite_number",
    "from_list",
    "pack_floats",
    "pack_ints",
    "to_list",
]
