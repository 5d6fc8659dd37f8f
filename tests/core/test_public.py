"""The public names: a change here is a change for every user."""

from __future__ import annotations

import agl_core

MOST_NAMES = 50
NAMES = [
    "AglError",
    "Attempt",
    "AttemptRecord",
    "Batch",
    "CaptureError",
    "ConfigError",
    "Evaluation",
    "LLM",
    "ModelCall",
    "PluginError",
    "Policy",
    "PromptTemplate",
    "Report",
    "Resources",
    "Reward",
    "Rollout",
    "RolloutError",
    "RunConfig",
    "Score",
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


def test_public_names_are_these():
    assert sorted(agl_core.__all__) == sorted(NAMES)
    assert len(agl_core.__all__) <= MOST_NAMES
    assert dir(agl_core) == sorted(NAMES)


def test_every_public_name_is_there():
    for name in agl_core.__all__:
        assert getattr(agl_core, name) is not None
