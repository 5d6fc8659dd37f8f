"""The report that a user is given: what a run says of itself, and the way to its weights."""

from __future__ import annotations

from agl_core.app.weights import export_weights
from agl_core.types import Report as RunReport

__all__ = ["Report"]


class Report(RunReport, kw_only=True):
    """The outcome of a run: where the weights lie, what was reached, what was lost."""

    @classmethod
    def of(cls, report: RunReport) -> Report:
        """The same, for a user."""
        return cls(**{name: getattr(report, name) for name in report.__struct_fields__})

    def export(self, directory: str) -> str:
        """Write the best checkpoint's weights and tokenizer to `directory`, ready to serve.

        Raises:
            TrainingError: the run produced no checkpoint, or a file of it is damaged.
        """
        return export_weights(self, directory)
