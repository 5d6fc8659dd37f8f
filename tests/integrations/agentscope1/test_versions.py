"""Versions that are attached, and those that are not what they should be: the latter are refused."""

import agl_agentscope
import pytest
from agentscope.agent import AgentBase, ReActAgent
from agentscope.pipeline import MsgHub
from agentscope.tool import Toolkit
from agl_agentscope import plugin
from agl_agentscope._integration import AgentScopeIntegration
from agl_http_clients import plugin as http_clients

from agl_core.app.parts import make_integrations
from agl_core.errors import ConfigError, MissingExtraError
from agl_core.plugins import PluginManager
from agl_core.plugins._manager import Source


def test_the_runner_attaches_this_version_as_what_its_own_extra_brings(caplog):
    plugins = PluginManager(environ={})
    plugins.register(plugin, Source(name="agentscope", distribution="agl-core"))
    plugins.register(http_clients, Source(name="http_clients"))
    assert [each.name for each in make_integrations(plugins)] == ["http_clients", "agentscope"]
    assert plugins.registry("integrations").get("agentscope").extra == "agentscope1"
    assert not caplog.text


CHECKED = [
    (AgentBase, "_broadcast_to_subscribers"),
    (MsgHub, "__aenter__"),
    (MsgHub, "broadcast"),
    (ReActAgent, "_compress_memory_if_needed"),
    (ReActAgent, "_retrieve_from_knowledge"),
    (ReActAgent, "_retrieve_from_long_term_memory"),
    (Toolkit, "call_tool_function"),
]


@pytest.mark.parametrize(("owner", "name"), CHECKED)
def test_a_version_in_which_a_function_takes_something_else_is_refused(monkeypatch, owner, name):
    async def other(self, something):
        raise NotImplementedError

    monkeypatch.setattr(owner, name, other)
    original = AgentBase.__call__
    with pytest.raises(ConfigError, match=rf"{owner.__name__}\.{name}"):
        AgentScopeIntegration().attach()
    assert AgentBase.__call__ is original
    assert getattr(owner, name) is other


@pytest.mark.parametrize(("owner", "name"), [*CHECKED, (MsgHub, "__aexit__")])
def test_a_version_without_a_function_is_refused(monkeypatch, owner, name):
    monkeypatch.delattr(owner, name)
    original = AgentBase.__call__
    with pytest.raises(ConfigError, match=rf"no {owner.__name__}\.{name}.*agl-core\[agentscope1\]"):
        AgentScopeIntegration().attach()
    assert AgentBase.__call__ is original


@pytest.mark.parametrize("name", ["AglMiddleware", "PromptBudgetMiddleware", "ThinkTagsMiddleware"])
def test_what_is_for_the_other_version_names_its_pip_line(name):
    with pytest.raises(MissingExtraError, match=r"needs agentscope 2.*agl-core\[agentscope\]"):
        getattr(agl_agentscope, name)
