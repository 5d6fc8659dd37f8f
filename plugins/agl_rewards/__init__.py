"""Rewards that a configuration chooses by name.

Four compare the answer with the expected one: as text, as a number, with a pattern, with a JSON
schema. `LlmJudge` asks a language model. `_ingest` serves the gateway's route ``/v1/rewards`` for
agents in any language.
"""

from agl_rewards._exact_match import ExactMatch, ExactMatchOptions
from agl_rewards._json_schema import JsonSchema, JsonSchemaOptions
from agl_rewards._llm_judge import LlmJudge, LlmJudgeOptions
from agl_rewards._numeric import Numeric, NumericOptions
from agl_rewards._regex import Regex, RegexOptions

__all__ = [
    "ExactMatch",
    "ExactMatchOptions",
    "JsonSchema",
    "JsonSchemaOptions",
    "LlmJudge",
    "LlmJudgeOptions",
    "Numeric",
    "NumericOptions",
    "Regex",
    "RegexOptions",
]
