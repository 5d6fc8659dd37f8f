"""Configuration of a run: pydantic models, files and overrides."""

from agl_core.config.models import (
    AlgorithmConfig,
    CaptureConfig,
    EngineConfig,
    EngineOptions,
    EvalConfig,
    FailureAction,
    GatewayConfig,
    PolicyConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    StoreConfig,
    TasksConfig,
    TrackerConfig,
    TrainConfig,
)
from agl_core.config.validation import validate

__all__ = [
    "AlgorithmConfig",
    "CaptureConfig",
    "EngineConfig",
    "EngineOptions",
    "EvalConfig",
    "FailureAction",
    "GatewayConfig",
    "PolicyConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "StoreConfig",
    "TasksConfig",
    "TrackerConfig",
    "TrainConfig",
    "validate",
]
