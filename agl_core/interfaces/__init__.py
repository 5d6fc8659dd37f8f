"""Protocols and base classes between components; only `agl_core.app` makes their implementations.

Reading order: `_store`, `_serving`, `_routes`, `_learning`, `_prompts`, `_extending`.
"""

from typing import TYPE_CHECKING

from agl_core.faces import late
from agl_core.interfaces._extending import Check as Check
from agl_core.interfaces._extending import Exporter as Exporter
from agl_core.interfaces._extending import Integration as Integration
from agl_core.interfaces._extending import KeepsFiles as KeepsFiles
from agl_core.interfaces._extending import Observer as Observer
from agl_core.interfaces._extending import Register as Register
from agl_core.interfaces._extending import RewardFunction as RewardFunction
from agl_core.interfaces._extending import RunObserver as RunObserver
from agl_core.interfaces._extending import Sent as Sent
from agl_core.interfaces._extending import StageObserver as StageObserver
from agl_core.interfaces._extending import TrackedRun as TrackedRun
from agl_core.interfaces._extending import Tracker as Tracker
from agl_core.interfaces._extending import show_stage as show_stage
from agl_core.interfaces._learning import AdaptedAttempt as AdaptedAttempt
from agl_core.interfaces._learning import Adapter as Adapter
from agl_core.interfaces._learning import AgentCall as AgentCall
from agl_core.interfaces._learning import Algorithm as Algorithm
from agl_core.interfaces._learning import AttemptRecord as AttemptRecord
from agl_core.interfaces._learning import CreditedCall as CreditedCall
from agl_core.interfaces._learning import Demonstrator as Demonstrator
from agl_core.interfaces._learning import Diagnose as Diagnose
from agl_core.interfaces._learning import Filter as Filter
from agl_core.interfaces._learning import ForestBuilder as ForestBuilder
from agl_core.interfaces._learning import TakesFilters as TakesFilters
from agl_core.interfaces._learning import Usage as Usage
from agl_core.interfaces._learning import agent_calls as agent_calls
from agl_core.interfaces._routes import Access as Access
from agl_core.interfaces._routes import Admission as Admission
from agl_core.interfaces._routes import AnswerDelta as AnswerDelta
from agl_core.interfaces._routes import Dialect as Dialect
from agl_core.interfaces._routes import DialectAnswer as DialectAnswer
from agl_core.interfaces._routes import GatewayRoute as GatewayRoute
from agl_core.interfaces._routes import Identity as Identity
from agl_core.interfaces._routes import JsonObjects as JsonObjects
from agl_core.interfaces._routes import Problem as Problem
from agl_core.interfaces._routes import ReceivedToolCall as ReceivedToolCall
from agl_core.interfaces._routes import RecordObserver as RecordObserver
from agl_core.interfaces._routes import Rewrite as Rewrite
from agl_core.interfaces._routes import Rewriter as Rewriter
from agl_core.interfaces._routes import RewriterFactory as RewriterFactory
from agl_core.interfaces._routes import RouteAnswer as RouteAnswer
from agl_core.interfaces._routes import RouteFactory as RouteFactory
from agl_core.interfaces._routes import RouteRequest as RouteRequest
from agl_core.interfaces._routes import TokenDetails as TokenDetails
from agl_core.interfaces._routes import TokenUsage as TokenUsage
from agl_core.interfaces._routes import read_body as read_body
from agl_core.interfaces._serving import COUNT_PATH as COUNT_PATH
from agl_core.interfaces._serving import NOT_COUNTED as NOT_COUNTED
from agl_core.interfaces._serving import PROMPT_REFUSED as PROMPT_REFUSED
from agl_core.interfaces._serving import RAW_PROMPT as RAW_PROMPT
from agl_core.interfaces._serving import AlgorithmSetup as AlgorithmSetup
from agl_core.interfaces._serving import Backend as Backend
from agl_core.interfaces._serving import BackendReply as BackendReply
from agl_core.interfaces._serving import Capabilities as Capabilities
from agl_core.interfaces._serving import CountAnswer as CountAnswer
from agl_core.interfaces._serving import Counted as Counted
from agl_core.interfaces._serving import Engine as Engine
from agl_core.interfaces._serving import Gateway as Gateway
from agl_core.interfaces._serving import GatewayUse as GatewayUse
from agl_core.interfaces._serving import Renderer as Renderer
from agl_core.interfaces._serving import Scored as Scored
from agl_core.interfaces._store import Store as Store
from agl_core.interfaces._store import StoreLifecycle as StoreLifecycle

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
    __getattr__, __dir__, __all__ = late(__name__)
