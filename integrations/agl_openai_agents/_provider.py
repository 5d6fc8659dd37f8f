"""The places of the SDK's tracing that are touched while agl is attached."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import agents
from agents.tracing import TraceProvider, TracingProcessor
from agents.tracing.processors import default_processor
from agents.tracing.provider import DefaultTraceProvider

from agl_core.errors import ConfigError
from agl_core.tracing import active

_EXPORTING: Final = ("on_trace_start", "on_span_end")
"""Where the SDK's own processor takes up what it will send."""


class Shadow:
    """One method of one object, wrapped by an attribute of that object alone.

    Whoever wraps it over ours keeps theirs when ours is removed; ours then only passes through.
    """

    def __init__(self, owner: Any, name: str, wrap: Callable[..., Any]) -> None:
        """Prepare; nothing is changed before `install`.

        Args:
            owner: The object.
            name: The method.
            wrap: Called in its place, with the original and its arguments.
        """
        self._owner = owner
        self._name = name
        original = getattr(owner, name)
        self._live = False

        @functools.wraps(original)
        def shadow(*args: Any, **kwargs: Any) -> Any:
            if self._live:
                return wrap(original, *args, **kwargs)
            return original(*args, **kwargs)

        self._shadow = shadow

    def install(self) -> None:
        self._live = True
        setattr(self._owner, self._name, self._shadow)

    def remove(self) -> None:
        self._live = False
        if inspect.getattr_static(self._owner, self._name) is self._shadow:
            delattr(self._owner, self._name)


class ProviderHook:
    """Our processor among those of one trace provider, whoever sets its list anew."""

    def __init__(self, provider: TraceProvider, processor: TracingProcessor) -> None:
        """Check the provider; nothing is changed before `install`.

        Raises:
            ConfigError: the SDK's provider keeps its processors elsewhere than is known.
        """
        self.provider = provider
        self._processor = processor
        if isinstance(provider, DefaultTraceProvider) and _processors(provider) is None:
            raise ConfigError(
                f"openai-agents {_version()}: DefaultTraceProvider keeps its processors where "
                f"agl-core does not know them: install openai-agents>=0.24,<1, or a newer agl-core"
            )
        self._setter = Shadow(provider, "set_processors", self._set)

    def install(self) -> None:
        self.provider.register_processor(self._processor)
        self._setter.install()

    def remove(self) -> None:
        """Take the processor out; a provider of somebody else's keeps it, silent."""
        self._setter.remove()
        self._processor.shutdown()
        present = _processors(self.provider)
        if present is not None and self._processor in present:
            self.provider.set_processors([each for each in present if each is not self._processor])

    def _set(self, original: Callable[..., None], processors: list[TracingProcessor]) -> None:
        others = [each for each in processors if each is not self._processor]
        original([*others, self._processor])


class CloudExport:
    """The SDK's own processor, which posts to OpenAI: it takes up nothing of a rollout.

    In a rollout ``OPENAI_API_KEY`` holds the gateway's key, with which it would try.
    """

    def __init__(self) -> None:
        processor = default_processor()
        self._shadows = [Shadow(processor, name, _outside) for name in _EXPORTING]

    def install(self) -> None:
        for shadow in self._shadows:
            shadow.install()

    def remove(self) -> None:
        for shadow in self._shadows:
            shadow.remove()


def _outside(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    context = active()
    # `agl_core.trace` records without a gateway, outside any rollout.
    if context is None or not context.origins:
        original(*args, **kwargs)


def _processors(provider: TraceProvider) -> Sequence[TracingProcessor] | None:
    """The processors of a provider, which offers no call for that; None where it hides them."""
    return getattr(getattr(provider, "_multi_processor", None), "_processors", None)


def _version() -> str:
    return agents.__version__
