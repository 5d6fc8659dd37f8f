"""CrewAI through the whole integration contract."""

import inspect

from agl_crewai import _entries
from agl_crewai._integration import CrewAIIntegration
from agl_testing.integration_contract import IntegrationContract
from agl_testing.plugin_contract import PluginContract
from crewai.events.event_bus import CrewAIEventsBus
from crewai.llms.providers.openai import completion

from .programs import CrewAIProgram


class TestCrewAI(IntegrationContract):
    package = "agl_crewai"
    frameworks = ("crewai",)

    def integration(self):
        return CrewAIIntegration()

    def program(self):
        return CrewAIProgram()

    def framework_state(self):
        return [
            inspect.getattr_static(owner, name)
            for owner, name in [
                (CrewAIEventsBus, "emit"),
                *((owner, name) for owner, name, _ in _entries._ENTRIES),
                (completion, "llm_call_context"),
            ]
        ]


class TestPlugin(PluginContract):
    plugin = "agl_crewai.plugin"
    frameworks = ("crewai",)
