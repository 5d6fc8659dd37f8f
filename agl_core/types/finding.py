"""What a trial run shows before anything is trained."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Severity = Literal["ok", "not checked", "warning", "error"]
"""``not checked``: nothing here can tell, which is never the same as ok."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at, what was measured, and what to do about it."""

    check: str
    """What was looked at, such as ``rewards.vary``; a plugin's begins with the plugin's name."""
    severity: Severity
    measured: str
    """One or two sentences with the numbers and names that were seen."""
    fix: str = ""
    """What to change; empty when there is nothing to do."""
    figures: dict[str, Any] = {}
    """The numbers and names of `measured` for programs; any JSON values."""

    @classmethod
    def of(
        cls, check: str, severity: Severity, measured: str, *, fix: str, figures: dict[str, Any]
    ) -> Finding:
        """A finding that keeps its fix only where there is something to do.

        A check may so state the fix beside what it looks for, whatever it found.
        """
        return cls(
            check=check,
            severity=severity,
            measured=measured,
            fix="" if severity == "ok" else fix,
            figures=figures,
        )


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a trial run of a few tasks showed."""

    run_id: str
    directory: str
    """Where the records of the trial lie, apart from those of the run."""
    tasks: int
    samples: int
    """Attempts per task."""
    calls: int
    """Model calls that were recorded."""
    findings: list[Finding]
    wall_s: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether any finding is an error."""
        return any(finding.severity == "error" for finding in self.findings)
