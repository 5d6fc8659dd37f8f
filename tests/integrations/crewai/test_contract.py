"""CrewAI through the whole integration contract."""

import inspect

from agl_crewai._integration import CrewAIIntegration
from crewai.events.event_bus import CrewAIEventsBus

from agl_core.testing.integration_contract import IntegrationContract
from agl_core.testing.plugin_contract import PluginContract

from .programs import CrewAIProgram


class TestCrewAI(IntegrationContract):
    package = "agl_crewai"
    frameworks = ("crewai",)

    def integration(self):
        return CrewAIIntegration()

    def program(self):
        return CrewAIProgram()

    def framework_state(self):
        return inspect.getattr_static(CrewAIEventsBus, "emit")


class TestPlugin(PluginContract):
    plugin = "agl_crewai.plugin"
    frameworks = ("crewai",)
