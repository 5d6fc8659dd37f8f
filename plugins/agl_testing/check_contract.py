"""The contract of checks for a framework's pitfalls.

::

    class TestCache(CheckContract):
        @pytest.fixture
        def check(self): return pitfalls

        @pytest.fixture
        def healthy(self): return [...]         # records without the pitfall

        @pytest.fixture
        def pitfall(self): return [...]         # records that show it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec
import pytest

from agl_core.config import RunConfig
from agl_core.interfaces import AttemptRecord, Check
from agl_core.types import Finding, Severity, to_list
from agl_testing._guard import ContractSuite

__all__ = ["CheckContract"]

_BAD = ("warning", "error")


class CheckContract(ContractSuite):
    """Contract suite of checks: subclass it and supply `check`, `healthy` and `pitfall`."""

    @pytest.fixture
    def check(self) -> Check:
        """Return the check under test."""
        raise NotImplementedError("Supply the fixture check")

    @pytest.fixture
    def healthy(self) -> list[AttemptRecord]:
        """Return attempts of the framework without the pitfall."""
        raise NotImplementedError("Supply the fixture healthy")

    @pytest.fixture
    def pitfall(self) -> list[AttemptRecord]:
        """Return attempts that show the pitfall."""
        raise NotImplementedError("Supply the fixture pitfall")

    def test_it_finds_the_pitfall(self, check: Check, pitfall: list[AttemptRecord]) -> None:
        assert _bad(check, pitfall), "it finds nothing in the attempts that show the pitfall"

    def test_it_is_content_without_it(self, check: Check, healthy: list[AttemptRecord]) -> None:
        assert healthy, "the fixture healthy holds no attempts"
        assert not _bad(check, healthy), f"it complains of sound attempts: {_bad(check, healthy)}"

    def test_it_says_nothing_where_nothing_ran(self, check: Check) -> None:
        assert not _bad(check, []), "it complains although its framework took no part"

    def test_every_finding_has_a_measure_and_every_bad_one_a_fix(
        self, check: Check, healthy: list[AttemptRecord], pitfall: list[AttemptRecord]
    ) -> None:
        for finding in [*_ask(check, healthy), *_ask(check, pitfall)]:
            assert isinstance(finding, Finding), f"{finding!r} is no agl_core.types.Finding"  # pyright: ignore[reportUnnecessaryIsInstance]
            assert finding.severity in get_args(Severity), f"{finding.severity!r} is no severity"
            assert finding.check, "a finding does not say what was looked at"
            assert finding.measured, f"{finding.check} does not say what was measured"
            assert finding.fix or finding.severity not in _BAD, f"{finding.check} has no fix"
            msgspec.json.encode(finding)

    def test_it_finds_the_same_again(self, check: Check, pitfall: list[AttemptRecord]) -> None:
        assert _ask(check, pitfall) == _ask(check, pitfall), "it finds something else each time"

    def test_it_leaves_the_attempts_alone(self, check: Check, pitfall: list[AttemptRecord]) -> None:
        before = _frozen(pitfall)
        _ask(check, pitfall)
        assert _frozen(pitfall) == before, "the check changed what it looked at"


def _ask(check: Check, records: Sequence[AttemptRecord]) -> list[Finding]:
    return list(check(records, RunConfig()))


def _bad(check: Check, records: Sequence[AttemptRecord]) -> list[Finding]:
    return [finding for finding in _ask(check, records) if finding.severity in _BAD]


def _frozen(records: Sequence[AttemptRecord]) -> bytes:
    rows = [(record.rollout, record.attempt, record.spans) for record in records]
    return msgspec.json.encode(rows, enc_hook=to_list)
