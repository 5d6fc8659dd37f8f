"""Names of agentlightning and of older programs, over the functions of `agl_core`.

``import agl_compat as agl`` runs a program that was written for them. Each name warns once with
today's name; docs/migrate.md lists them. Reading order: `_names` (warnings), `_trainer`, `_lit`
(rollout functions), `_resources`, `_algorithms`, `_selection`; `_triplets`, `_route` and `_adapter`
(triplets that a rollout function returns); `_agent`, `_grpo`, `_file`, `_command`; `_calls`,
`_client`, `_tracer`, `_storage`, `_rates`, `_log`.

Names are imported on first use, so that loading the plugin costs little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_compat._agent import Agent as Agent
    from agl_compat._algorithms import APO as APO
    from agl_compat._algorithms import VERL as VERL
    from agl_compat._calls import emit_reward as emit_reward
    from agl_compat._calls import emit_tool_call as emit_tool_call
    from agl_compat._command import main as main
    from agl_compat._file import train_file as train_file
    from agl_compat._grpo import GRPOTrainer as GRPOTrainer
    from agl_compat._grpo import RLConfig as RLConfig
    from agl_compat._lit import LitAgent as LitAgent
    from agl_compat._lit import llm_rollout as llm_rollout
    from agl_compat._lit import prompt_rollout as prompt_rollout
    from agl_compat._lit import reward as reward
    from agl_compat._lit import rollout as rollout
    from agl_compat._log import TrainingLog as TrainingLog
    from agl_compat._log import configure_logger as configure_logger
    from agl_compat._log import setup_logging as setup_logging
    from agl_compat._names import OldNameWarning as OldNameWarning
    from agl_compat._rates import setup_rate_limiting as setup_rate_limiting
    from agl_compat._resources import LLM as LLM
    from agl_compat._resources import AttemptedRollout as AttemptedRollout
    from agl_compat._resources import Dataset as Dataset
    from agl_compat._resources import NamedResources as NamedResources
    from agl_compat._resources import PromptTemplate as PromptTemplate
    from agl_compat._resources import Rollout as Rollout
    from agl_compat._selection import TracerTraceToTriplet as TracerTraceToTriplet
    from agl_compat._selection import TraceToMessages as TraceToMessages
    from agl_compat._storage import InMemoryLightningStore as InMemoryLightningStore
    from agl_compat._storage import LightningStore as LightningStore
    from agl_compat._tracer import Trace as Trace
    from agl_compat._tracer import tracer as tracer
    from agl_compat._trainer import AgentOpsTracer as AgentOpsTracer
    from agl_compat._trainer import LLMProxy as LLMProxy
    from agl_compat._trainer import OtelTracer as OtelTracer
    from agl_compat._trainer import Trainer as Trainer
    from agl_compat._triplets import Triplet as Triplet
    from agl_core import emit_exception as emit_exception
    from agl_core import emit_message as emit_message
    from agl_core import emit_object as emit_object
    from agl_core import operation as operation
else:
    __getattr__, __dir__, __all__ = late(__name__)
