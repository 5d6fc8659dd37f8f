"""Changes to the SDK's trace provider and exporter while the integration is attached."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import agents
from agents.tracing import Span, Trace, TraceProvider, TracingProcessor
from agents.tracing.processors import default_processor
from agents.tracing.provider import DefaultTraceProvider

from agl_core.errors import ConfigError
from agl_core.tracing import active


class Shadow:
    """A wrapper of one method of one object, set as an attribute of that object.

    If other code has wrapped ours, `remove` leaves both, and ours only calls the original.
    """

    def __init__(self, owner: Any, name: str, wrap: Callable[..., Any]) -> None:
        """Make the wrapper; `install` sets it.

        Args:
            owner: The object.
            name: The method's name.
            wrap: Called instead of the method, with the original and its arguments.

        Raises:
            ConfigError: the object does not have this method with one argument.
        """
        self._owner = owner
        self._name = name
        original: Any = getattr(owner, name, None)
        try:
            inspect.signature(original).bind(None)
        except TypeError as error:
            raise ConfigError(
                f"openai-agents {_version()}: {type(owner).__name__}.{name} is not the method of "
                f"one argument that agl-core wraps ({error}): install openai-agents>=0.24,<1, or a "
                f"newer agl-core"
            ) from error
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
    """Keeps our processor in one trace provider, also after its list is replaced."""

    def __init__(self, provider: TraceProvider, processor: TracingProcessor) -> None:
        """Check the provider; `install` adds the processor.

        Raises:
            ConfigError: the list of processors is not in the SDK's provider where we look for it.
        """
        self.provider = provider
        self._processor = processor
        if isinstance(provider, DefaultTraceProvider) and _processors(provider) is None:
            raise ConfigError(
                f"openai-agents {_version()}: DefaultTraceProvider keeps its processors where "
                f"agl-core does not know them: install openai-agents>=0.24,<1, or a newer agl-core"
            )
        self._shadows = [
            Shadow(provider, "set_processors", self._set),
            Shadow(provider, "create_trace", self._create_trace),
        ]

    def install(self) -> None:
        self.provider.register_processor(self._processor)
        for shadow in self._shadows:
            shadow.install()

    def remove(self) -> None:
        """Remove the processor; a custom provider keeps it, but it records nothing."""
        for shadow in self._shadows:
            shadow.remove()
        self._processor.shutdown()
        present = _processors(self.provider)
        if present is not None and self._processor in present:
            self.provider.set_processors([each for each in present if each is not self._processor])

    def _set(self, original: Callable[..., None], processors: list[TracingProcessor]) -> None:
        others = [each for each in processors if each is not self._processor]
        original([*others, self._processor])

    def _create_trace(self, original: Callable[..., Trace], *args: Any, **kwargs: Any) -> Trace:
        self.stay()
        return original(*args, **kwargs)

    def stay(self) -> None:
        """Add the processor again if other code, such as an instrumentation, replaced the list."""
        present = _processors(self.provider)
        if present is not None and self._processor not in present:
            self.provider.register_processor(self._processor)


class CloudExport:
    """Keeps rollouts out of the SDK's default processor, which exports to OpenAI.

    In a rollout ``OPENAI_API_KEY`` holds the gateway's key, and the exporter would send it.
    """

    def __init__(self) -> None:
        processor = default_processor()
        self._shadows = [
            Shadow(processor, "on_trace_start", self._trace_start),
            Shadow(processor, "on_span_start", self._span_start),
            Shadow(processor, "on_span_end", self._span_end),
        ]
        # The garbage collector ends the spans of an abandoned stream, also after the rollout.
        self._begun: WeakSet[Span[Any]] = WeakSet()

    def install(self) -> None:
        for shadow in self._shadows:
            shadow.install()

    def remove(self) -> None:
        for shadow in self._shadows:
            shadow.remove()

    def _trace_start(self, original: Callable[..., None], trace: Trace) -> None:
        if not _in_rollout():
            original(trace)

    def _span_start(self, original: Callable[..., None], span: Span[Any]) -> None:
        if _in_rollout():
            self._begun.add(span)
        else:
            original(span)

    def _span_end(self, original: Callable[..., None], span: Span[Any]) -> None:
        if span not in self._begun and not _in_rollout():
            original(span)


def _in_rollout() -> bool:
    context = active()
    # `agl_core.trace` records without a gateway and outside a rollout: it has no origins.
    return context is not None and bool(context.origins)


def _processors(provider: TraceProvider) -> Sequence[TracingProcessor] | None:
    """Return a provider's processors from a private attribute; None if it does not exist."""
    return getattr(getattr(provider, "_multi_processor", None), "_processors", None)


def _version() -> str:
    return agents.__version__
