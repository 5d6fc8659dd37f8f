"""LangChain and LangGraph integration: the agent of each model call, and a prompt budget.

Importing this package does not need LangChain; using `AglCallbackHandler` or
`PromptBudgetMiddleware` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_langchain._budget import PromptBudgetMiddleware
    from agl_langchain._handler import AglCallbackHandler

__all__ = ["AglCallbackHandler", "PromptBudgetMiddleware"]

_PLACES = {"AglCallbackHandler": "_handler", "PromptBudgetMiddleware": "_budget"}


def __getattr__(name: str) -> Any:
    from agl_core.plugins import Framework, offered  # noqa: PLC0415

    core = Framework("langchain_core", "langchain-core", "langchain", "langchain")
    agents = Framework("langchain", "langchain", name)
    return offered(name, __name__, _PLACES, core, agents)
