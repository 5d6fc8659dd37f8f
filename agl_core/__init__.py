"""agl-core: train the named sub-agents of an agent that already works.

Everything a user needs is here; names are imported on first use, so ``import agl_core`` is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_core.app import Report as Report
    from agl_core.app import attach as attach
    from agl_core.app import evaluate as evaluate
    from agl_core.app import export_weights as export_weights
    from agl_core.app import train as train
    from agl_core.config import RunConfig as RunConfig
    from agl_core.errors import AglError as AglError
    from agl_core.errors import CaptureError as CaptureError
    from agl_core.errors import ConfigError as ConfigError
    from agl_core.errors import PluginError as PluginError
    from agl_core.errors import RolloutError as RolloutError
    from agl_core.errors import StoreError as StoreError
    from agl_core.errors import TrainingError as TrainingError
    from agl_core.interfaces import AttemptRecord as AttemptRecord
    from agl_core.plugins import hookimpl as hookimpl
    from agl_core.tracing import agent_scope as agent_scope
    from agl_core.tracing import alias as alias
    from agl_core.tracing import current as current
    from agl_core.tracing import emit_exception as emit_exception
    from agl_core.tracing import emit_message as emit_message
    from agl_core.tracing import emit_object as emit_object
    from agl_core.tracing import emit_reward as emit_reward
    from agl_core.tracing import emit_tool_call as emit_tool_call
    from agl_core.tracing import operation as operation
    from agl_core.tracing import resource as resource
    from agl_core.tracing import trace as trace
    from agl_core.types import LLM as LLM
    from agl_core.types import Attempt as Attempt
    from agl_core.types import Batch as Batch
    from agl_core.types import Evaluation as Evaluation
    from agl_core.types import ModelCall as ModelCall
    from agl_core.types import Policy as Policy
    from agl_core.types import PromptTemplate as PromptTemplate
    from agl_core.types import Resources as Resources
    from agl_core.types import Reward as Reward
    from agl_core.types import Rollout as Rollout
    from agl_core.types import Score as Score
    from agl_core.types import Span as Span
    from agl_core.types import Task as Task
    from agl_core.types import Trajectory as Trajectory
    from agl_core.types import Triplet as Triplet
else:
    __getattr__, __dir__, __all__ = late(__name__)
