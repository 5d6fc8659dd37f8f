"""AutoGen reads tools of MCP with the version of its package that is installed here."""

from __future__ import annotations


def test_autogen_has_tools_of_mcp() -> None:
    from autogen_ext.tools.mcp import StdioServerParams

    assert StdioServerParams(command="python").command == "python"
