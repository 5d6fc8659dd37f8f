"""The user's report of a run, with the export of its weights."""

from __future__ import annotations

from pathlib import Path

from agl_core.app.blocking import run_blocking
from agl_core.app.parts import engine_class
from agl_core.builtin import load_plugins
from agl_core.config.loader import RESOLVED
from agl_core.errors import ConfigError, TrainingError
from agl_core.files import write_private
from agl_core.interfaces import Engine
from agl_core.training.checkpoint import POLICIES, verify
from agl_core.types import Report as RunReport

__all__ = ["Report"]


class Report(RunReport, kw_only=True):
    """The outcome of a run: weights, scores and losses."""

    @classmethod
    def of(cls, report: RunReport) -> Report:
        """Convert a run's report to this class."""
        return cls(**{name: getattr(report, name) for name in report.__struct_fields__})

    def export(self, directory: str) -> str:
        """Write the best checkpoint's weights and tokenizer to `directory`, ready to serve.

        Raises:
            TrainingError: the run has no checkpoint, or a file of the checkpoint is damaged.
        """
        return export_weights(self, directory)


def export_weights(target: RunReport | str | Path, directory: str | Path) -> str:
    """Write the weights and tokenizer of each policy of a checkpoint, ready to serve.

    If a checkpoint has only a low-rank adapter, the engine that wrote it merges it. The run's
    configuration is copied to the directory, so that ``agl.evaluate`` accepts it as a checkpoint.

    Args:
        target: A report, for its best checkpoint, or a checkpoint's directory.
        directory: Directory with a folder per policy; created if missing.

    Raises:
        TrainingError: the run has no checkpoint, or a file of the checkpoint is damaged.
        ConfigError: the base model of an adapter is missing.
        MissingExtraError: the engine that merges needs a library that is not installed.
    """
    if isinstance(target, RunReport):
        if target.best is None:
            raise TrainingError(
                f"Run {target.run_id!r} has no checkpoint to export: it took no step"
            )
        target = target.best
    run_blocking(_export(Path(target), Path(directory)))
    config = Path(target).resolve().parents[1] / RESOLVED
    if config.is_file():
        write_private(Path(directory) / RESOLVED, config.read_bytes())
    return str(directory)


async def _export(checkpoint: Path, directory: Path) -> None:
    state = await verify(checkpoint)
    plugins = load_plugins()
    # The engine of a plugin file is not loaded; its directory is copied.
    known = state.engine in plugins.registry("engines")
    engine = engine_class(state.engine, plugins) if known else Engine
    policies = sorted(path for path in (checkpoint / POLICIES).iterdir() if path.is_dir())
    if not policies:
        raise ConfigError(f"Checkpoint {checkpoint} holds no weights")
    for policy in policies:
        await engine.export(str(policy), str(directory / policy.name))
