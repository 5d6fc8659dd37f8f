"""Reserved names for CrewAI's own calls, and names of attributes."""

from __future__ import annotations

from typing import Final

FRAMEWORK: Final = "crewai"
SUMMARIZER: Final = "@summarizer"
"""Agent of the calls with which CrewAI summarizes a history that is too long for the model."""
GUARDRAIL: Final = "@guardrail"
"""Agent of the calls with which CrewAI checks an output against a guardrail given as text."""
OWN: Final = "@crewai"
"""Agent of all other calls that CrewAI makes for itself and not for an agent."""

RESPECTS_WINDOW: Final = "crewai.respect_context_window"
DEFERS_RESULTS: Final = "crewai.use_better_compaction"
AGENT_ID: Final = "crewai.agent_id"
TASK: Final = "crewai.task"
