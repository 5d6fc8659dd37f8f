"""agl-core: train the named sub-agents of an agent that already works.

Everything a user needs is here; names are imported on first use, so ``import agl_core`` is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_core.app import attach, evaluate, train
    from agl_core.app.report import Report, export_weights
    from agl_core.budget import PromptBudget
    from agl_core.config import RunConfig
    from agl_core.errors import (
        AglError,
        CaptureError,
        ConfigError,
        PluginError,
        RolloutError,
        StoreError,
        TrainingError,
    )
    from agl_core.interfaces import AttemptRecord
    from agl_core.plugins import hookimpl
    from agl_core.tracing import (
        agent_scope,
        alias,
        current,
        emit_exception,
        emit_message,
        emit_object,
        emit_reward,
        emit_tool_call,
        operation,
        resource,
        trace,
    )
    from agl_core.types import (
        LLM,
        Attempt,
        Batch,
        Evaluation,
        ModelCall,
        Policy,
        PromptTemplate,
        Resources,
        Reward,
        Rollout,
        Span,
        Task,
        Trajectory,
        Triplet,
    )

__all__ = [
    "LLM",
    "AglError",
    "Attempt",
    "AttemptRecord",
    "Batch",
    "CaptureError",
    "ConfigError",
    "Evaluation",
    "ModelCall",
    "PluginError",
    "Policy",
    "PromptBudget",
    "PromptTemplate",
    "Report",
    "Resources",
    "Reward",
    "Rollout",
    "RolloutError",
    "RunConfig",
    "Span",
    "StoreError",
    "Task",
    "TrainingError",
    "Trajectory",
    "Triplet",
    "agent_scope",
    "alias",
    "attach",
    "current",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "emit_tool_call",
    "evaluate",
    "export_weights",
    "hookimpl",
    "operation",
    "resource",
    "trace",
    "train",
]

_MODULES = {
    "agl_core.app": ("attach", "evaluate", "train"),
    "agl_core.app.report": ("Report", "export_weights"),
    "agl_core.budget": ("PromptBudget",),
    "agl_core.config": ("RunConfig",),
    "agl_core.interfaces": ("AttemptRecord",),
    "agl_core.plugins": ("hookimpl",),
    "agl_core.errors": (
        "AglError",
        "CaptureError",
        "ConfigError",
        "PluginError",
        "RolloutError",
        "StoreError",
        "TrainingError",
    ),
    "agl_core.tracing": (
        "agent_scope",
        "alias",
        "current",
        "emit_exception",
        "emit_message",
        "emit_object",
        "emit_reward",
        "emit_tool_call",
        "operation",
        "resource",
        "trace",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'agl_core' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = getattr(import_module(_MODULE_OF.get(name, "agl_core.types")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
