"""Zero-code mode: LangChain's own hook hands the handler to every run while agl is attached."""

from __future__ import annotations

from contextvars import ContextVar

from langchain_core.tracers import context as tracers
from langchain_core.tracers.context import register_configure_hook

from agl_core.types import Scope
from agl_langchain._handler import AglCallbackHandler
from agl_langchain._runs import FRAMEWORK, TABLES


class LangChainIntegration:
    """LangChain and LangGraph, attached to the process."""

    name = FRAMEWORK

    def __init__(self) -> None:
        self._hook: ContextVar[AglCallbackHandler | None] | None = None

    def attach(self) -> None:
        """Let LangChain add an `AglCallbackHandler` to every run that was not handed one."""
        if self._hook is not None:
            return
        # The default holds in every thread and context; a value set here would not.
        handler = AglCallbackHandler()
        self._hook = ContextVar("agl_langchain_handler", default=handler)
        register_configure_hook(self._hook, inheritable=True, handle_class=AglCallbackHandler)

    def detach(self) -> None:
        """Take the hook out of LangChain's list, which offers no call for that."""
        hooks = tracers._configure_hooks  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        hooks[:] = [entry for entry in hooks if entry[0] is not self._hook]
        self._hook = None

    def identity(self) -> Scope | None:
        """Who speaks here: the open model call, else the run whose code is about to send."""
        table = TABLES.here()
        return table.sender() if table is not None else None
