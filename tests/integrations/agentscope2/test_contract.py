"""AgentScope 2 through the whole integration contract."""

from agentscope.agent import Agent
from agl_agentscope._integration import AgentScopeIntegration
from agl_testing.integration_contract import IntegrationContract
from agl_testing.plugin_contract import PluginContract

from .programs import AgentScopeProgram


class TestAgentScope(IntegrationContract):
    package = "agl_agentscope"
    frameworks = ("agentscope",)

    def integration(self):
        return AgentScopeIntegration()

    def program(self):
        return AgentScopeProgram()

    def framework_state(self):
        return Agent.reply, Agent.reply_stream


class TestPlugin(PluginContract):
    plugin = "agl_agentscope.plugin"
    frameworks = ("agentscope", "openai")
