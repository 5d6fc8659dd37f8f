"""Which integrations a run attaches, and what it says of their frameworks' versions."""

import pytest

from agl_core.app import parts
from agl_core.app.parts import make_integrations
from agl_core.errors import MissingExtraError, pip_line
from agl_core.plugins import PluginManager, hookimpl
from agl_core.plugins.manager import Source


class Mine:
    name = "mine"


class Absent:
    def __init__(self):
        raise MissingExtraError("absent", needs="absent>=1", extra="absent")


class Plugin:
    @hookimpl
    def agl_register_integrations(self, register):
        register("absent", f"{__name__}:Absent", extra="absent")
        register("mine", f"{__name__}:Mine", extra="mine")


@pytest.fixture
def plugins():
    manager = PluginManager(environ={})
    manager.register(Plugin(), Source(name="mine"))
    return manager


def warnings(caplog):
    return [record.getMessage() for record in caplog.records]


def test_a_framework_that_is_absent_is_left_out_without_a_word(plugins, caplog):
    assert [each.name for each in make_integrations(plugins)] == ["mine"]
    assert warnings(caplog) == []


def test_a_framework_outside_its_tested_range_is_one_warning(plugins, caplog, monkeypatch):
    ranges = {"mine": ["mine-core<2,>=1"]}
    monkeypatch.setattr(parts, "unmet_extra", lambda entry: ranges.get(entry.name, []))
    assert [each.name for each in make_integrations(plugins)] == ["mine"]
    (said,) = warnings(caplog)
    assert "'mine' is tested with mine-core<2,>=1" in said
    assert pip_line("mine") in said
