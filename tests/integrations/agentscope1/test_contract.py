"""AgentScope 1 through the whole integration contract."""

import inspect

from agentscope.agent import AgentBase, ReActAgent
from agentscope.model import OpenAIChatModel
from agentscope.pipeline import MsgHub
from agentscope.tool import Toolkit
from agl_agentscope._integration import AgentScopeIntegration
from agl_testing.integration_contract import IntegrationContract
from agl_testing.plugin_contract import PluginContract

from .programs import AgentScopeProgram

WRAPPED = {
    AgentBase: ("__call__", "_broadcast_to_subscribers"),
    ReActAgent: (
        "_compress_memory_if_needed",
        "_retrieve_from_knowledge",
        "_retrieve_from_long_term_memory",
    ),
    MsgHub: ("__aenter__", "__aexit__", "broadcast"),
    Toolkit: ("call_tool_function",),
    OpenAIChatModel: ("__call__",),
}


class TestAgentScope(IntegrationContract):
    package = "agl_agentscope"
    frameworks = ("agentscope",)

    def integration(self):
        return AgentScopeIntegration()

    def program(self):
        return AgentScopeProgram()

    def framework_state(self):
        return [
            inspect.getattr_static(owner, name, None)
            for owner, names in WRAPPED.items()
            for name in names
        ]


class TestPlugin(PluginContract):
    plugin = "agl_agentscope.plugin"
    frameworks = ("agentscope", "openai")
