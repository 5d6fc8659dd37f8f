"""The Protocols through which rooms meet; `agl_core.app` alone constructs what fulfils them.

Reading order: `store`, `serving`, `learning`, `extending`, `tracking`.
"""

from agl_core.interfaces.agent_call import AgentCall, Usage, agent_calls
from agl_core.interfaces.extending import (
    Check,
    Integration,
    KeepsFiles,
    Observer,
    Register,
    RewardFunction,
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
from agl_core.interfaces.serving import (
    Backend,
    BackendReply,
    Capabilities,
    ChecksModel,
    Counted,
    CountingBackend,
    Engine,
    ExportingEngine,
    Gateway,
    LegibleBackend,
    OverlappingEngine,
    Renderer,
    RenderingEngine,
    SeeingEngine,
    ToolsEngine,
    VocabularyEngine,
)
from agl_core.interfaces.store import Store, StoreLifecycle
from agl_core.interfaces.tracking import TrackedRun, Tracker

__all__ = [
    "AdaptedAttempt",
    "Adapter",
    "AgentCall",
    "Algorithm",
    "AlgorithmSetup",
    "AttemptRecord",
    "Backend",
    "BackendReply",
    "Capabilities",
    "Check",
    "ChecksModel",
    "Counted",
    "CountingBackend",
    "CreditedCall",
    "Engine",
    "ExportingEngine",
    "ForestBuilder",
    "Gateway",
    "Integration",
    "KeepsFiles",
    "LegibleBackend",
    "Observer",
    "OverlappingEngine",
    "Register",
    "Renderer",
    "RenderingEngine",
    "RewardFunction",
    "SeeingEngine",
    "StageObserver",
    "Store",
    "StoreLifecycle",
    "ToolsEngine",
    "TrackedRun",
    "Tracker",
    "Usage",
    "VocabularyEngine",
    "agent_calls",
    "tell_stage",
]
