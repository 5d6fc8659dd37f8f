"""Names that stand for CrewAI's own agents, and names of attributes."""

from __future__ import annotations

from typing import Final

FRAMEWORK: Final = "crewai"
SUMMARIZER: Final = "@summarizer"
"""Speaks in the calls with which CrewAI shortens a history that is too long for the model."""
GUARDRAIL: Final = "@guardrail"
"""Speaks in the calls with which CrewAI checks an output against a guardrail given as text."""
OWN: Final = "@crewai"
"""Speaks in every other call that CrewAI makes for itself, on no agent's behalf."""

RESPECTS_WINDOW: Final = "crewai.respect_context_window"
DEFERS_RESULTS: Final = "crewai.use_better_compaction"
AGENT_ID: Final = "crewai.agent_id"
TASK: Final = "crewai.task"
