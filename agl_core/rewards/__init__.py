"""Rewards: functions that score an attempt, and the scorer that runs them."""

from agl_core.rewards.build import build_rewards
from agl_core.rewards.exact_match import ExactMatch, ExactMatchOptions
from agl_core.rewards.json_schema import JsonSchema, JsonSchemaOptions
from agl_core.rewards.llm_judge import LlmJudge, LlmJudgeOptions
from agl_core.rewards.numeric import Numeric, NumericOptions
from agl_core.rewards.regex import Regex, RegexOptions
from agl_core.rewards.scorer import NamedReward, Scorer

__all__ = [
    "ExactMatch",
    "ExactMatchOptions",
    "JsonSchema",
    "JsonSchemaOptions",
    "LlmJudge",
    "LlmJudgeOptions",
    "NamedReward",
    "Numeric",
    "NumericOptions",
    "Regex",
    "RegexOptions",
    "Scorer",
    "build_rewards",
]
