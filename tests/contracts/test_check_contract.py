"""Each rule of CheckContract fails on a check that breaks it."""

from itertools import count

import pytest
from agl_testing.attempts import CallOptions, ScriptedAttempt
from agl_testing.check_contract import CheckContract

from agl_core.types import Finding


def record(agent: str):
    script = ScriptedAttempt()
    script.call(agent, [1], [2], options=CallOptions(framework="toy"))
    return script.record()


def found(records, **fields):
    given = {"check": "toy.names", "severity": "warning", "measured": "unnamed", "fix": "name it"}
    unnamed = any(span.agent == "model" for record in records for span in record.spans)
    return [Finding(**{**given, **fields})] if unnamed else []


def sound(records, config):
    return found(records)


def blind(records, config):
    return []


def always(records, config):
    return [Finding(check="toy.names", severity="error", measured="bad", fix="mend it")]


def always_where_something_ran(records, config):
    return always(records, config) if records else []


def without_fix(records, config):
    return found(records, fix="")


def without_measure(records, config):
    return found(records, measured="")


def without_name(records, config):
    return found(records, check="")


def with_another_severity(records, config):
    return found(records, severity="fatal")


def with_text(records, config):
    return ["bad"] if found(records) else []


class Counts:
    def __init__(self):
        self.numbers = count()

    def __call__(self, records, config):
        return found(records, measured=f"unnamed {next(self.numbers)}")


def clears(records, config):
    findings = found(records)
    for each in records:
        each.spans.clear()
    return findings


_TOLD = "every_finding_has_a_measure_and_every_bad_one_a_fix"
_CASES = [
    ("it_finds_the_pitfall", blind),
    ("it_is_content_without_it", always_where_something_ran),
    ("it_says_nothing_where_nothing_ran", always),
    (_TOLD, without_fix),
    (_TOLD, without_measure),
    (_TOLD, without_name),
    (_TOLD, with_another_severity),
    (_TOLD, with_text),
    ("it_finds_the_same_again", Counts()),
    ("it_leaves_the_attempts_alone", clears),
]


@pytest.mark.parametrize(("rule", "broken"), _CASES)
def test_a_broken_check_is_caught(rule, broken):
    test = getattr(CheckContract(), f"test_{rule}")
    names = test.__code__.co_varnames[1 : test.__code__.co_argcount]

    def run(check):
        given = {"healthy": [record("writer")], "pitfall": [record("model")], "check": check}
        test(**{name: given[name] for name in names})

    run(sound)
    with pytest.raises(AssertionError):
        run(broken)


def test_no_attempts_do_not_count_as_sound_ones():
    with pytest.raises(AssertionError, match="healthy"):
        CheckContract().test_it_is_content_without_it(sound, [])


def test_every_rule_has_its_broken_check():
    rules = {name[5:] for name in vars(CheckContract) if name.startswith("test_")}
    assert rules == {rule for rule, _ in _CASES}
