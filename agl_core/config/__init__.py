"""Configuration of a run: pydantic models, files and overrides."""

from agl_core.config.loader import RESOLVED, check_options, load_config, read_anchored, resolve
from agl_core.config.models import (
    AlgorithmConfig,
    CaptureConfig,
    EngineConfig,
    EngineOptions,
    EvalConfig,
    FailureAction,
    GatewayConfig,
    PhaseConfig,
    PolicyConfig,
    PromptConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    StoreConfig,
    TasksConfig,
    TrackerConfig,
    TrainConfig,
    with_sections,
)
from agl_core.config.policies import resolve_policies, trained_agents
from agl_core.config.references import load_object, read_text
from agl_core.config.validation import scheme_of, validate

__all__ = [
    "RESOLVED",
    "AlgorithmConfig",
    "CaptureConfig",
    "EngineConfig",
    "EngineOptions",
    "EvalConfig",
    "FailureAction",
    "GatewayConfig",
    "PhaseConfig",
    "PolicyConfig",
    "PromptConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "StoreConfig",
    "TasksConfig",
    "TrackerConfig",
    "TrainConfig",
    "check_options",
    "load_config",
    "load_object",
    "read_anchored",
    "read_text",
    "resolve",
    "resolve_policies",
    "scheme_of",
    "trained_agents",
    "validate",
    "with_sections",
]
