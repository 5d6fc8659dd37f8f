"""Which integrations a run attaches, and what it says of their frameworks' versions."""

import pytest

import agl_core as agl
from agl_core.app import parts
from agl_core.app._components import _Diagnosing
from agl_core.app.parts import make_integrations
from agl_core.errors import ConfigError, MissingExtraError, PluginError, pip_line
from agl_core.plugins import PluginManager, hookimpl
from agl_core.plugins._manager import Source


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


class Checking:
    @hookimpl
    def agl_register_integrations(self, register):
        register("zip_clients", f"{__name__}:Checks", required=True)


class Checks:
    name = "zip_clients"


@pytest.fixture
def plugins():
    manager = PluginManager(environ={})
    manager.register(Plugin(), Source(name="mine"))
    manager.register(Checking(), Source(name="zip_clients"))
    return manager


def warnings(caplog):
    return [record.getMessage() for record in caplog.records]


def test_a_framework_that_is_absent_is_left_out_without_a_word(plugins, caplog):
    assert [each.name for each in make_integrations(plugins)] == ["zip_clients", "mine"]
    assert warnings(caplog) == []


def test_a_framework_outside_its_tested_range_is_one_warning(plugins, caplog, monkeypatch):
    ranges = {"mine": ["mine-core<2,>=1"]}
    monkeypatch.setattr(parts, "unmet_extra", lambda entry: ranges.get(entry.name, []))
    assert [each.name for each in make_integrations(plugins)] == ["zip_clients", "mine"]
    (said,) = warnings(caplog)
    assert "'mine' is tested with mine-core<2,>=1" in said
    assert pip_line("mine") in said


def test_nothing_is_attached_without_the_checks_of_http_libraries(monkeypatch):
    """C2: a trained agent's request over them would be sent without an error."""
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "http_clients")
    with pytest.raises(ConfigError, match=r"not loaded: 'http_clients' \(named in AGL_DISABLE"):
        agl.attach()


def test_a_required_integration_of_a_broken_plugin_is_an_error(plugins):
    class Broken:
        @hookimpl
        def agl_register_integrations(self, register):
            register("broken", f"{__name__}:Mine", required=True)

        @hookimpl
        def agl_register_nothing(self):
            pass

    plugins.register(Broken(), Source(name="broken"))
    with pytest.raises(PluginError, match="'broken' cannot be used: Plugin 'broken' is broken"):
        make_integrations(plugins)


def test_a_required_integration_can_be_replaced():
    """Core knows no name of a plugin: one that is required is enough."""
    manager = PluginManager(environ={"AGL_DISABLE_PLUGINS": "http_clients"})
    manager.load_installed()
    manager.register(Checking(), Source(name="zip_clients"))
    assert make_integrations(manager)[0].name == "zip_clients"


def test_checks_that_cannot_be_made_are_an_error(plugins, monkeypatch):
    """C2: other integrations are left out if something that they need is missing."""

    def absent(self):
        raise MissingExtraError("zip_clients", needs="absent>=1")

    monkeypatch.setattr(Checks, "__init__", absent)
    with pytest.raises(PluginError, match="absent"):
        make_integrations(plugins)


def test_the_checks_are_attached_first():
    """The other integrations are detached before them."""
    attachment = agl.attach()
    try:
        assert attachment._integrations[0].name == "http_clients"
    finally:
        attachment.detach()


def test_a_diagnosis_whose_extra_is_absent_is_left_out(tmp_path, monkeypatch):
    """One that cannot be imported ended every attempt of the run."""
    (tmp_path / "needs_absent.py").write_text("import a_package_that_is_absent\n")
    monkeypatch.syspath_prepend(tmp_path)

    class Diagnosing:
        @hookimpl
        def agl_register_diagnoses(self, register):
            register("absent", "needs_absent:found", extra="absent")
            register("mine", f"{__name__}:found_nothing")

    manager = PluginManager(environ={})
    manager.register(Diagnosing(), Source(name="mine"))
    assert _Diagnosing(None, manager, ()).diagnoses == [found_nothing]


def found_nothing(record, adapted):
    return {}
