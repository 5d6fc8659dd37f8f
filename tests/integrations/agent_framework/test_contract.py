"""Microsoft Agent Framework through the whole integration contract."""

from typing import ClassVar

from agent_framework import AgentMiddlewareLayer
from agent_framework.openai import OpenAIChatClient
from agl_agent_framework._integration import AgentFrameworkIntegration
from agl_testing.integration_contract import IntegrationContract
from agl_testing.plugin_contract import PluginContract

from .programs import AgentFrameworkProgram

FRAMEWORKS = ("agent_framework", "agent_framework_openai", "agent_framework_orchestrations")


class TestAgentFramework(IntegrationContract):
    package = "agl_agent_framework"
    frameworks = FRAMEWORKS

    def integration(self):
        return AgentFrameworkIntegration()

    def program(self):
        return AgentFrameworkProgram()

    def framework_state(self):
        return AgentMiddlewareLayer.run


class ResponsesProgram(AgentFrameworkProgram):
    """The same over Responses, which `OpenAIChatClient` speaks."""

    client_type = OpenAIChatClient
    agent_fields: ClassVar = {"default_options": {"store": False}}


class TestResponses(TestAgentFramework):
    def program(self):
        return ResponsesProgram()


class TestPlugin(PluginContract):
    plugin = "agl_agent_framework.plugin"
    frameworks = (*FRAMEWORKS, "openai")
