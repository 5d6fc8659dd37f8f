"""Protocols and base classes between components; only `agl_core.app` makes their implementations.

Reading order: `_store`, `_serving`, `_routes`, `_learning`, `_prompts`, `_extending`.
"""

from typing import TYPE_CHECKING

from agl_core.faces import late
from agl_core.interfaces._extending import (
    Check,
    Exporter,
    Integration,
    KeepsFiles,
    Observer,
    Register,
    RewardFunction,
    RunObserver,
    Sent,
    StageObserver,
    TrackedRun,
    Tracker,
    show_stage,
)
from agl_core.interfaces._learning import (
    AdaptedAttempt,
    Adapter,
    AgentCall,
    Algorithm,
    AttemptRecord,
    CreditedCall,
    Demonstrator,
    Diagnose,
    ForestBuilder,
    Usage,
    agent_calls,
)
from agl_core.interfaces._routes import (
    Access,
    AnswerDelta,
    Dialect,
    DialectAnswer,
    GatewayRoute,
    Identity,
    JsonObjects,
    Problem,
    ReceivedToolCall,
    RecordObserver,
    Rewrite,
    Rewriter,
    RewriterFactory,
    RouteAnswer,
    RouteFactory,
    RouteRequest,
    TokenDetails,
    TokenUsage,
)
from agl_core.interfaces._serving import (
    COUNT_PATH,
    NOT_COUNTED,
    PROMPT_REFUSED,
    AlgorithmSetup,
    Backend,
    BackendReply,
    Capabilities,
    CountAnswer,
    Counted,
    Engine,
    Gateway,
    GatewayUse,
    Renderer,
)
from agl_core.interfaces._store import Store, StoreLifecycle

if TYPE_CHECKING:
    from agl_core.interfaces._prompts import Candidate as Candidate
    from agl_core.interfaces._prompts import LearnsPrompts as LearnsPrompts
    from agl_core.interfaces._prompts import Optimizer as Optimizer
    from agl_core.interfaces._prompts import PromptOutcome as PromptOutcome
    from agl_core.interfaces._prompts import PromptPhase as PromptPhase
    from agl_core.interfaces._prompts import PromptRollout as PromptRollout
    from agl_core.interfaces._prompts import Tuned as Tuned
    from agl_core.interfaces._prompts import TunedPrompt as TunedPrompt
    from agl_core.interfaces._prompts import Tuner as Tuner
else:  # only runs that tune prompts import it
    __getattr__ = late(__name__)[0]

__all__ = [
    "COUNT_PATH",
    "NOT_COUNTED",
    "PROMPT_REFUSED",
    "Access",
    "AdaptedAttempt",
    "Adapter",
    "AgentCall",
    "Algorithm",
    "AlgorithmSetup",
    "AnswerDelta",
    "AttemptRecord",
    "Backend",
    "BackendReply",
    "Candidate",
    "Capabilities",
    "Check",
    "CountAnswer",
    "Counted",
    "CreditedCall",
    "Demonstrator",
    "Diagnose",
    "Dialect",
    "DialectAnswer",
    "Engine",
    "Exporter",
    "ForestBuilder",
    "Gateway",
    "GatewayRoute",
    "GatewayUse",
    "Identity",
    "Integration",
    "JsonObjects",
    "KeepsFiles",
    "LearnsPrompts",
    "Observer",
    "Optimizer",
    "Problem",
    "PromptOutcome",
    "PromptPhase",
    "PromptRollout",
    "ReceivedToolCall",
    "RecordObserver",
    "Register",
    "Renderer",
    "RewardFunction",
    "Rewrite",
    "Rewriter",
    "RewriterFactory",
    "RouteAnswer",
    "RouteFactory",
    "RouteRequest",
    "RunObserver",
    "Sent",
    "StageObserver",
    "Store",
    "StoreLifecycle",
    "TokenDetails",
    "TokenUsage",
    "TrackedRun",
    "Tracker",
    "Tuned",
    "TunedPrompt",
    "Usage",
    "agent_calls",
    "show_stage",
]
