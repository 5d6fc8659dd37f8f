"""Zero-code mode: LangChain's configure hook adds the handler to every run while attached."""

from __future__ import annotations

from contextvars import ContextVar

from langchain_core.tracers import context as tracers
from langchain_core.tracers.context import register_configure_hook

from agl_core.types import Scope
from agl_langchain._handler import AglCallbackHandler
from agl_langchain._runs import FRAMEWORK, TABLES


class LangChainIntegration:
    """Records all runs of LangChain and LangGraph in this process."""

    name = FRAMEWORK

    def __init__(self) -> None:
        self._hook: ContextVar[AglCallbackHandler | None] | None = None

    def attach(self) -> None:
        """Let LangChain add an `AglCallbackHandler` to every run that does not have one."""
        if self._hook is not None:
            return
        # A default is visible in every thread and context; a value set here is not.
        handler = AglCallbackHandler()
        self._hook = ContextVar("agl_langchain_handler", default=handler)
        register_configure_hook(self._hook, inheritable=True, handle_class=AglCallbackHandler)

    def detach(self) -> None:
        """Remove the hook from LangChain's private list; there is no public function for that."""
        hooks = tracers._configure_hooks  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        hooks[:] = [entry for entry in hooks if entry[0] is not self._hook]
        self._hook = None

    def identity(self) -> Scope | None:
        """Return the scope of the open model call, else of the run that is about to send."""
        table = TABLES.here()
        return table.sender() if table is not None else None
