"""The integration contract for this framework."""

from agl_template._integration import TemplateIntegration
from agl_testing.integration_contract import IntegrationContract
from agl_testing.plugin_contract import PluginContract
from agl_testing.toy_framework import Agent
from agl_testing.toy_program import ToyProgram


class TestTemplate(IntegrationContract):
    package = "agl_template"
    frameworks = ("httpx",)

    def integration(self) -> TemplateIntegration:
        return TemplateIntegration()

    def program(self) -> ToyProgram:
        return ToyProgram()

    def framework_state(self) -> list[object]:
        return list(Agent.listeners)


class TestPlugin(PluginContract):
    plugin = "agl_template.plugin"
    frameworks = ("httpx",)
