"""What a check found, with its fix where one is needed."""

import pytest

from agl_core.types import Finding


@pytest.mark.parametrize("severity", ["not checked", "warning", "error"])
def test_a_fix_stays_where_there_is_something_to_do(severity):
    found = Finding.of("mine.names", severity, "Seen.", fix="Name it.", figures={"runs": 1})
    assert found == Finding(
        check="mine.names", severity=severity, measured="Seen.", fix="Name it.", figures={"runs": 1}
    )


def test_what_is_well_has_no_fix():
    assert not Finding.of("mine.names", "ok", "Fine.", fix="Name it.", figures={}).fix
