"""Attribute names on spans: ours under ``agl.``, OpenTelemetry's ``gen_ai.`` where one exists."""

from __future__ import annotations

from typing import Final

GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
GEN_AI_TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
GEN_AI_TOOL_RESULT: Final = "gen_ai.tool.call.result"

AGL_FRAMEWORK: Final = "agl.framework"
AGL_CAPTURE_ERROR: Final = "agl.capture_error"
AGL_MESSAGE: Final = "agl.message"
AGL_OBJECT: Final = "agl.object"
AGL_INPUT: Final = "agl.input"
AGL_OUTPUT: Final = "agl.output"
AGL_LOST: Final = "agl.lost"
"""Losses by cause that a runner in another process counted; on a span of the same name."""
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

HEADER_PREFIX: Final = "x-agl-"
HEADER_ROLLOUT: Final = "x-agl-rollout"
HEADER_ATTEMPT: Final = "x-agl-attempt"
HEADER_AGENT: Final = "x-agl-agent"
HEADER_AGENT_RUN: Final = "x-agl-agent-run"
HEADER_CALL: Final = "x-agl-call"
HEADER_TRAINABLE: Final = "x-agl-trainable"
"""``0`` when the caller's scope said ``trainable=False``; absent otherwise."""

ENV_CONTEXT: Final = "AGL_CONTEXT"
"""JSON identity that a Python subprocess inherits and ``attach()`` reads."""
