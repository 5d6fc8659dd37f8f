"""Export of selected attempts from a store; all others are counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, Literal

import msgspec
from agl_stores import attempt_records, rollout_pages

from agl_core import semconv
from agl_core.adapters import AgentSelector
from agl_core.app import engine_class, engine_name
from agl_core.config import RunConfig, resolve_policies, trained_agents
from agl_core.errors import CaptureError, ConfigError, PluginError, RewardError
from agl_core.interfaces import (
    AdaptedAttempt,
    Adapter,
    AttemptRecord,
    Renderer,
    Store,
)
from agl_core.plugins import PluginManager
from agl_core.types import (
    AttemptStatus,
    Losses,
    Mode,
    Policy,
    RolloutQuery,
)
from agl_records._conversations import Conversation
from agl_records._files import JsonLines, Parquet, RowWriter
from agl_records._rows import (
    TrajectoryRow,
    agent_return,
    chat_examples,
    trajectory_rows,
    unused_choices,
)
from agl_records._untrained import adapt_untrained

ExportFormat = Literal["jsonl", "parquet", "openai"]
"""The formats of exported training data."""

_PAGE: Final = 50
_MOST_PROBLEMS: Final = 10
_OTHERWISE: Final = "rendered_otherwise"
_NOT_CLEAN: Final = "personal_data"
Clean = Callable[[Any], Any]
"""Returns a JSON value as others may read it; without a fault, an equal value."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Selection and format of an export."""

    format: ExportFormat = "jsonl"
    """``jsonl`` and ``parquet``: a `TrajectoryRow` per token path; ``openai``: chat fine-tuning."""
    agents: tuple[str, ...] = ()
    """Names or globs. Empty: the agents that the run trains, or all without a configuration."""
    modes: tuple[Mode, ...] = ("train",)
    """Modes of the rollouts; held-out tasks are exported only on request."""
    run_id: str | None = None
    min_reward: float | None = None
    """The lowest return of an agent in an attempt."""
    failed: Literal["skip", "include"] = "skip"
    """Whether to export attempts that did not succeed; their rewards do not count."""


class ExportSummary(msgspec.Struct, kw_only=True):
    """Counts of exported and other attempts; every attempt is in exactly one count."""

    rows: int = 0
    attempts: int = 0
    """Attempts with at least one row."""
    unverified: int = 0
    """Rows of the format ``openai`` that could not be compared with the recorded tokens, because
    the model's chat template is not available."""
    left_out: dict[str, int] = {}
    """Attempts without a row, by cause."""
    lost: dict[str, int] = {}
    """Rows, calls, choices and rewards of exported attempts that are in no row, by cause."""
    problems: list[str] = []
    """The first few reasons why attempts could not be joined."""
    output: str = ""


async def export_from(
    store: Store,
    stream: IO[bytes],
    options: ExportOptions,
    *,
    plugins: PluginManager,
    config: RunConfig | None = None,
    cleaned: Clean | None = None,
) -> ExportSummary:
    """Export from an open store into a stream.

    Args:
        store: Open, at least for reading.
        stream: Destination of the rows.
        options: Selection and format.
        plugins: Provide the adapter that the run uses.
        config: The run's configuration. None: every policy counts as trained and channels weigh 1.
        cleaned: Changes the texts of every row. A row with token ids whose texts it changes is left
            out, as its tokens would still say them.

    Raises:
        ConfigError: an agent was not seen.
        MissingExtraError: the format needs a library that is not installed.
    """
    export = _Export(options, plugins, config, _writer(options.format, stream))
    export.cleaned = cleaned
    query = RolloutQuery(run_id=options.run_id)
    async for rollouts in rollout_pages(store, query, size=_PAGE):
        wanted = [rollout for rollout in rollouts if rollout.mode in options.modes]
        async for record in attempt_records(store, wanted):
            export.add(record)
    return export.finish()


def _writer(format_: ExportFormat, stream: IO[bytes]) -> RowWriter:
    return Parquet(stream) if format_ == "parquet" else JsonLines(stream)


class _Export:
    """The state of one export."""

    def __init__(
        self,
        options: ExportOptions,
        plugins: PluginManager,
        config: RunConfig | None,
        writer: RowWriter,
    ) -> None:
        self._options = options
        self._writer = writer
        self._summary = ExportSummary()
        self.cleaned: Clean | None = None
        self._lost = Losses()
        self._seen: set[str] = set()
        self._config, self._plugins = config, plugins
        self._renderers: dict[str, Renderer | None] = {}
        """Renderer by model."""
        self._policies = resolve_policies(config, training=False) if config is not None else None
        self._patterns = options.agents or _trained(config, self._policies)
        self._weights = config.channel_weights if config is not None else {}
        name = config.capture.adapter if config is not None else "trajectory"
        self._adapter: Callable[..., Adapter] = plugins.registry("adapters").resolve(name)

    def add(self, record: AttemptRecord) -> None:
        """Export one attempt, or count why it is not exported."""
        cause = _unusable(record, self._options) or self._export(record)
        if cause:
            left_out = self._summary.left_out
            left_out[cause] = left_out.get(cause, 0) + 1
        else:
            self._summary.attempts += 1

    def finish(self) -> ExportSummary:
        """Write the end of the file.

        Raises:
            ConfigError: a selected agent was not seen.
        """
        self._writer.close()
        if self._seen:
            AgentSelector(self._patterns).check(self._seen)
        self._summary.lost = self._lost.counts
        return self._summary

    def _export(self, record: AttemptRecord) -> str:
        """Write the rows of an attempt; return why there are none, or an empty text."""
        try:
            adapted = self._adapt(record)
        except (CaptureError, RewardError) as error:
            if len(self._summary.problems) < _MOST_PROBLEMS:
                self._summary.problems.append(f"attempt {record.attempt.id}: {error}")
            return "capture_error" if isinstance(error, CaptureError) else "reward_error"
        self._seen |= adapted.seen
        self._lost.merge(adapted.losses)
        agents = sorted(agent for agent, paths in adapted.trajectories.items() if paths)
        if not agents:
            return "no_calls_of_these_agents"
        agents = [agent for agent in agents if self._good_enough(record, adapted, agent)]
        if not agents:
            return "below_min_reward"
        before, otherwise = self._summary.rows, self._lost.counts.get(_OTHERWISE, 0)
        for row in self._rows(record, adapted, agents):
            clean = self._shared(row, record)
            if clean is not None:
                self._writer.write(clean)
                self._summary.rows += 1
        if self._summary.rows > before:
            return ""
        if self.cleaned is not None and self._lost.counts.get(_NOT_CLEAN):
            return _NOT_CLEAN
        return _OTHERWISE if self._lost.counts.get(_OTHERWISE, 0) > otherwise else "choices_unused"

    def _shared(self, row: Any, record: AttemptRecord) -> Any:
        """Return a row as others may read it, or None, counted, if its tokens may not be read."""
        if self.cleaned is None:
            return row
        if not isinstance(row, TrajectoryRow):
            return self.cleaned(row)
        masked = {
            span.call.id
            for span in record.spans
            if span.call is not None and semconv.AGL_MASKED in span.attributes
        }
        said = [row.messages, row.tools]
        if self.cleaned(said) != said or any(call.call_id in masked for call in row.calls):
            self._lost.add(_NOT_CLEAN)
            return None
        change = msgspec.structs.replace
        return change(
            row,
            **{name: self.cleaned(getattr(row, name)) for name in ("task_id", "group_id")},
            rewards=[change(each, why=self.cleaned(each.why)) for each in row.rewards],
        )

    def _rows(
        self, record: AttemptRecord, adapted: AdaptedAttempt, agents: Sequence[str]
    ) -> Iterator[Any]:
        if self._options.format != "openai":
            return trajectory_rows(record, adapted, agents)
        unused = sum(unused_choices(adapted.trajectories[agent]) for agent in agents)
        self._lost.merge(Losses(counts={"choices_unused": unused} if unused else {}))
        return self._alike(record, chat_examples(record, adapted, agents))

    def _alike(
        self, record: AttemptRecord, examples: Iterator[Conversation]
    ) -> Iterator[dict[str, Any]]:
        """Yield the examples that the chat template renders to the recorded tokens."""
        for example in examples:
            render = self._renderer(example.last.policy)
            if render is None:
                alike = example.opens_its_thinking(record.rollout.thinking_tags)
            else:
                alike = example.rendered_alike(render)
            if not alike:
                self._lost.add(_OTHERWISE)
                continue
            self._summary.unverified += render is None
            yield example.weighted()

    def _renderer(self, policy: str) -> Renderer | None:
        """Return a renderer from a policy's conversations to tokens; None if no engine has one."""
        model = next((p.model for p in self._policies or () if p.name == policy), "")
        if model not in self._renderers:
            self._renderers[model] = self._make_renderer(model) if model else None
        return self._renderers[model]

    def _make_renderer(self, model: str) -> Renderer | None:
        if self._config is None:
            return None
        try:
            name = engine_name(self._config, self._plugins)
            return engine_class(name, self._plugins).renderer(model)
        except (ConfigError, PluginError) as error:
            _log.info("Rows of model %s are not rendered again: %s", model, error)
            return None

    def _good_enough(self, record: AttemptRecord, adapted: AdaptedAttempt, agent: str) -> bool:
        least = self._options.min_reward
        if least is None:
            return True
        succeeded = record.attempt.status is AttemptStatus.SUCCEEDED
        returned = adapted.returns[agent]
        return succeeded and not returned.unrewarded and agent_return(returned) >= least

    def _adapt(self, record: AttemptRecord) -> AdaptedAttempt:
        policies = self._policies if self._policies is not None else _answering(record)
        if record.rollout.mode == "train":
            adapter = self._adapter(
                self._patterns, policies=policies, channel_weights=self._weights
            )
            return adapter.adapt(record)
        return adapt_untrained(
            record, agents=self._patterns, policies=policies, channel_weights=self._weights
        )


def _trained(config: RunConfig | None, policies: list[Policy] | None) -> Sequence[str]:
    """Return the agents that the run trains; all if that is unknown."""
    if config is None or policies is None:
        return ("*",)
    return trained_agents(config, policies) or ("*",)


def _answering(record: AttemptRecord) -> list[Policy]:
    """Return the policies that answered, as trainable: each call records whether it is trained."""
    names = {span.call.policy for span in record.spans if span.call is not None}
    return [
        Policy(name=name, trainable=True, train_constrained=True) for name in sorted(names) if name
    ]


def _unusable(record: AttemptRecord, options: ExportOptions) -> str:
    """Return why an attempt is skipped without reading it further; empty if it is not."""
    attempt = record.attempt
    if not (attempt.status.final and attempt.sealed):
        return "running"
    if attempt.status is not AttemptStatus.SUCCEEDED and options.failed == "skip":
        return "failed"
    if not record.spans:
        return "spans_deleted" if record.rollout.consumed else "no_spans"
    return ""
