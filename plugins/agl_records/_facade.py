"""The Python interface for exporting training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from agl_stores import StoreAddress, locate_store, open_for_reading

from agl_core.app import load_plugins, run_blocking
from agl_core.plugins import PluginManager
from agl_core.store import whole_file
from agl_core.types import Mode, Report
from agl_records._marked import MarksForm, MarksSummary, export_marks_from, marks_of
from agl_records._run import Clean, ExportFormat, ExportOptions, ExportSummary, export_from


def export_rollouts(  # noqa: PLR0913 - one per choice of a user
    target: Report | str | Path,
    output: str | Path,
    *,
    format: ExportFormat = "jsonl",  # noqa: A002 - the word for it
    agents: Sequence[str] = (),
    modes: Sequence[Mode] = ("train",),
    min_reward: float | None = None,
    failed: Literal["skip", "include"] = "skip",
    run_id: str | None = None,
    plugins: Sequence[str | Path] = (),
    cleaned: Clean | None = None,
) -> ExportSummary:
    """Write agents' answers and rewards as training data.

    Args:
        target: A report, a run's directory, a configuration, a database file or an http:// address.
        output: The file.
        format: ``jsonl`` and ``parquet`` have a row per token path with its ids. ``openai`` is the
            chat format of fine-tuning services: an example per path, weight 1 on sampled messages.
        agents: Names or globs; the agents that the run trains when omitted.
        modes: Modes of the rollouts; held-out tasks are exported only on request.
        min_reward: The lowest return of the agent in the attempt.
        failed: Whether to export attempts that did not succeed; their rewards do not count.
        run_id: Only rollouts of this run.
        plugins: Local plugin files to load; those in the run's configuration are not loaded.
        cleaned: Changes the texts of rows, such as ``agl_privacy.Masker().value``; a row with token
            ids whose texts it changes is left out and counted as ``personal_data``.

    Returns:
        What was exported, and what was not, by cause.

    Raises:
        ConfigError: there is no store, only the run's own record names its server, an agent was not
            seen, or the file cannot be written.
        MissingExtraError: ``parquet`` without the extra of that name.
    """
    options = ExportOptions(
        format=format,
        agents=tuple(agents),
        modes=tuple(modes),
        run_id=run_id,
        min_reward=min_reward,
        failed=failed,
    )
    loaded = load_plugins(plugins)
    address = _located(target, loaded)
    if address.run is not None:
        address.check_offered(loaded, "adapters", address.run.capture.adapter)

    async def work() -> ExportSummary:
        async with open_for_reading(address, loaded) as store:
            with whole_file(output, what="The export") as stream:
                return await export_from(
                    store, stream, options, plugins=loaded, config=address.run, cleaned=cleaned
                )

    summary = run_blocking(work())
    summary.output = str(output)
    return summary


def export_marks(
    target: Report | str | Path,
    output: str | Path,
    *,
    form: MarksForm = "sft",
    marks: str | Path | None = None,
    plugins: Sequence[str | Path] = (),
) -> MarksSummary:
    """Write the calls that people have marked as training data, one JSON object per line.

    Args:
        target: A report, a run's directory, a configuration, a database file or an http:// address.
        output: The file.
        form: ``sft``: conversations with the good answers and the corrections, as the algorithm
            ``sft`` reads them. ``preferences``: pairs of a better and a worse answer to the same
            prompt, in the conversational preference form of TRL.
        marks: The file of marks; ``marks.db`` in the run's directory when omitted.
        plugins: Local plugin files to load; those in the run's configuration are not loaded.

    Returns:
        What was exported, and what was not, by cause.

    Raises:
        ConfigError: there is no store or no file of marks, or the output cannot be written.
        StoreError: the marks cannot be read.
    """
    loaded = load_plugins(plugins)
    address = _located(target, loaded)
    found = marks_of(address, Path(marks).expanduser() if marks is not None else None).read()

    async def work() -> MarksSummary:
        async with open_for_reading(address, loaded) as store:
            with whole_file(output, what="The export") as stream:
                return await export_marks_from(store, found, stream, form)

    summary = run_blocking(work())
    summary.output = str(output)
    return summary


def _located(target: Report | str | Path, plugins: PluginManager) -> StoreAddress:
    """Return the store of a target; a `Report` counts as the user's own choice of the address."""
    if isinstance(target, Report):
        return replace(locate_store(target.directory, plugins), named=True)
    return locate_store(target, plugins)
