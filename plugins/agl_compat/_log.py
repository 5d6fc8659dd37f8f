"""A log file of a training, one line per event, which can be followed while it grows."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any, Final

from agl_privacy import mask_logs

from agl_compat._names import renamed
from agl_core.errors import ConfigError
from agl_core.files import make_private_directory
from agl_core.types import Evaluation, Report, StepReport

NAME: Final = "training.log"
MASKING: Final = "AGENT_LIGHTNING_PII_MASKING_ENABLED"
_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off")


def setup_logging(level: int | str = logging.INFO, **others: Any) -> None:
    """Log to standard error; other arguments have no effect."""
    del others
    renamed("setup_logging", "logging.basicConfig(level=...)")
    logging.basicConfig(level=level)


def configure_logger(
    level: int | str = logging.INFO, name: str = "agl_core", **others: Any
) -> logging.Logger:
    """Log to standard error with personal data masked, and return the logger.

    ``AGENT_LIGHTNING_PII_MASKING_ENABLED=false`` leaves the logs as they are; other arguments have
    no effect.
    """
    setup_logging(level, **others)
    own = name == "agl_core"  # with the plugins, as a run's section has them too
    mask_logs(*([] if own else [name]), enabled=asks_for_masks())
    return logging.getLogger(name)


def asks_for_masks() -> bool:
    """Return whether ``AGENT_LIGHTNING_PII_MASKING_ENABLED`` asks for masked logs, as by default.

    Raises:
        ConfigError: it is neither true nor false.
    """
    given = os.environ.get(MASKING, "").strip().lower()
    if not given:
        return True
    renamed(MASKING, "AGL_MASK_LOGS")
    if given not in (*_TRUE, *_FALSE):
        raise ConfigError(f"{MASKING} is {given!r}: write true or false")
    return given in _TRUE


def mask_as_asked() -> None:
    """Leave agl-core's logs as they are if ``AGENT_LIGHTNING_PII_MASKING_ENABLED`` asks for it."""
    if not asks_for_masks():
        mask_logs(enabled=False)


class TrainingLog:
    """An observer that appends what happens to ``training.log`` in the run's directory."""

    def __init__(self, file: Path | None = None) -> None:
        """Choose the file; None: in the run's directory."""
        self.file = file

    def started(self, config: Any) -> None:
        self.file = self.file or Path(config.directory) / config.name / NAME
        self._write(f"run {config.name} started: {config.train.steps} steps")

    def step(self, report: StepReport) -> None:
        reward = "none" if report.reward is None else f"{report.reward:.4f}"
        numbers = [f"{name}={value:.6g}" for name, value in sorted(report.metrics.items())]
        self._write(
            f"step {report.step}/{report.steps} reward={reward} calls={report.calls} "
            f"tokens={report.tokens} {' '.join(numbers)}".rstrip()
        )

    def evaluation(self, evaluation: Evaluation) -> None:
        self._write(str(evaluation))

    def finished(self, report: Report) -> None:
        self._write(f"run {report.run_id} finished: weights {report.best or 'none'}")

    def _write(self, text: str) -> None:
        assert self.file is not None
        make_private_directory(self.file.parent)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self.file.open("a", encoding="utf-8") as log:
            log.write(f"{stamp} {text}\n")
