"""The Protocols through which components meet; `agl_core.app` alone constructs what fulfils them.

Reading order: `store`, `serving`, `routes`, `dialects`, `learning`, `extending`, `tracking`.
"""

from agl_core.interfaces.agent_call import AgentCall, Usage, agent_calls
from agl_core.interfaces.dialects import (
    AnswerDelta,
    Dialect,
    DialectAnswer,
    ReceivedToolCall,
    TokenDetails,
    TokenUsage,
)
from agl_core.interfaces.extending import (
    Check,
    Exporter,
    Integration,
    KeepsFiles,
    Observer,
    Register,
    RewardFunction,
    Sent,
    StageObserver,
    tell_stage,
)
from agl_core.interfaces.learning import (
    AdaptedAttempt,
    Adapter,
    Algorithm,
    AlgorithmSetup,
    AttemptRecord,
    CreditedCall,
    ForestBuilder,
)
from agl_core.interfaces.problems import Problem
from agl_core.interfaces.routes import (
    GatewayRoute,
    Identity,
    RouteAnswer,
    RouteFactory,
    RouteRequest,
)
from agl_core.interfaces.serving import (
    Backend,
    BackendReply,
    Capabilities,
    Counted,
    Engine,
    Gateway,
    Renderer,
)
from agl_core.interfaces.store import Store, StoreLifecycle
from agl_core.interfaces.tracking import TrackedRun, Tracker

__all__ = [
    "AdaptedAttempt",
    "Adapter",
    "AgentCall",
    "Algorithm",
    "AlgorithmSetup",
    "AnswerDelta",
    "AttemptRecord",
    "Backend",
    "BackendReply",
    "Capabilities",
    "Check",
    "Counted",
    "CreditedCall",
    "Dialect",
    "DialectAnswer",
    "Engine",
    "Exporter",
    "ForestBuilder",
    "Gateway",
    "GatewayRoute",
    "Identity",
    "Integration",
    "KeepsFiles",
    "Observer",
    "Problem",
    "ReceivedToolCall",
    "Register",
    "Renderer",
    "RewardFunction",
    "RouteAnswer",
    "RouteFactory",
    "RouteRequest",
    "Sent",
    "StageObserver",
    "Store",
    "StoreLifecycle",
    "TokenDetails",
    "TokenUsage",
    "TrackedRun",
    "Tracker",
    "Usage",
    "agent_calls",
    "tell_stage",
]
