"""The canonical scenario in each framework, as its contract has it."""

from __future__ import annotations

import importlib
from typing import Any, Final

PROGRAMS: Final = {
    "agent_framework": ("agent_framework", "TestAgentFramework"),
    "agentscope": ("agentscope2", "TestAgentScope"),
    "agentscope1": ("agentscope1", "TestAgentScope"),
    "autogen": ("autogen", "TestAutoGen"),
    "crewai": ("crewai", "TestCrewAI"),
    "langchain": ("langchain", "TestLangChain"),
    "openai": ("openai", "TestOpenAI"),
    "openai_agents": ("openai_agents", "TestOpenAIAgents"),
}
FORMS: Final = ("run", "arun", "stream", "astream")


def contract_of(framework: str) -> Any:
    """The framework's contract suite: how it is attached, and the program that is played."""
    folder, suite = PROGRAMS[framework]
    return getattr(importlib.import_module(f"tests.integrations.{folder}.test_contract"), suite)
