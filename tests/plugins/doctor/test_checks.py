"""Checks of plugins: every one is asked, and none disturbs another."""

from types import SimpleNamespace

import pytest

from agl_core.plugins import hookimpl
from agl_core.types import Finding
from tests.plugins.doctor.conftest import only, writer

ASKED = []


def pitfall(records, config):
    ASKED.append((len(records), config.name))
    return [Finding(check="mine.pitfall", severity="error", measured="seen", fix="do not")]


def silent(records, config):
    return ()


def raises(records, config):
    raise ValueError("no idea")


def fails_late(records, config):
    yield Finding(check="late", severity="ok", measured="fine")
    raise KeyError("late")


def gives_text(records, config):
    return ["all is well"]


def empties(records, config):
    records.clear()
    return ()


def plugin(name, **checks):
    @hookimpl
    def agl_register_checks(register):
        for check, target in checks.items():
            register(check, target if ":" in target else f"{__name__}:{target}")

    return SimpleNamespace(name=name, agl_register_checks=agl_register_checks)


def test_every_registered_check_is_asked_and_counts(clinic) -> None:
    ASKED.clear()
    clinic.plugins = [plugin("one", mine="pitfall"), plugin("two", other="silent")]
    diagnosis = clinic.diagnose(writer)
    assert ASKED == [(4, "trial")]
    assert only(diagnosis, "mine.pitfall").fix == "do not"
    assert diagnosis.failed


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("raises", "Plugin 'bad' raised in check 'broken': ValueError: no idea"),
        ("fails_late", "KeyError"),
        ("gives_text", "TypeError: it gave 'all is well'"),
        ("nowhere_to_be_found", "cannot be imported"),
        ("no_such_module:check", "no_such_module"),
    ],
)
def test_a_broken_check_is_a_finding_and_the_others_are_asked(clinic, target, words) -> None:
    clinic.plugins = [plugin("bad", broken=target), plugin("good", mine="pitfall")]
    diagnosis = clinic.diagnose(writer)
    assert only(diagnosis, "mine.pitfall")
    broken = only(diagnosis, "broken")
    assert broken.severity == "warning"
    assert words in broken.measured


def test_a_check_whose_framework_is_missing_takes_no_part(clinic, tmp_path, monkeypatch) -> None:
    (tmp_path / "needs_absent.py").write_text("import absent_framework\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    clinic.plugins = [plugin("absent", gone="needs_absent:check")]
    diagnosis = clinic.diagnose(writer)
    assert "gone" not in {finding.check for finding in diagnosis.findings}
    assert not diagnosis.failed


def test_a_check_cannot_take_records_from_the_next(clinic) -> None:
    ASKED.clear()
    clinic.plugins = [plugin("greedy", a_first="empties"), plugin("one", b_second="pitfall")]
    clinic.diagnose(writer)
    assert ASKED == [(4, "trial")]
