"""Which integration a program concerns."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace

import pytest
from agl_init._frameworks import integrations_of

from agl_core.plugins import PluginManager, hookimpl
from agl_core.plugins._manager import Source

SHELF = {
    "agl-core": [
        "robots-core>=1; extra == 'robots'",
        "mcp<2; extra == 'robots'",
        "client>=2; extra == 'client'",
    ],
    "Robots_Core": ["mcp", "client; extra == 'all'"],
    "robots-graph": ["robots-core"],
    "robots-client": ["robots-core", "client"],
    "client": [],
    "tools": ["robots-graph"],
    "loop-a": ["loop-b"],
    "loop-b": ["loop-a"],
}
MODULES = {
    "robots": ["Robots_Core"],
    "graph": ["robots-graph"],
    "robots_client": ["robots-client"],
    "client": ["client"],
    "tools": ["tools"],
    "loop": ["loop-a"],
}


@pytest.fixture
def plugins(monkeypatch):
    def requires(name):
        found = {key.lower().replace("_", "-"): value for key, value in SHELF.items()}
        if name.lower().replace("_", "-") not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name.lower().replace("_", "-")]

    monkeypatch.setattr(metadata, "requires", requires)
    monkeypatch.setattr(metadata, "packages_distributions", lambda: MODULES)

    @hookimpl
    def agl_register_integrations(register):
        register("robots", "a:b", extra="robots", summary="Robots: agents by their name")
        register("client", "a:b", extra="client", summary="the plain client")
        register("bare", "a:b")

    manager = PluginManager(environ={})
    manager.register(
        SimpleNamespace(agl_register_integrations=agl_register_integrations),
        Source(name="mine", distribution="agl-core"),
    )
    return manager


@pytest.mark.parametrize(
    ("imports", "names"),
    [
        ((), []),
        (("json", "loop", "nobody"), []),
        (("robots",), ["robots"]),
        (("client",), ["client"]),
        (("graph",), ["robots"]),
        (("tools",), ["robots"]),
        (("robots_client",), ["client", "robots"]),
        (("robots_client", "graph"), ["robots"]),
        (("robots_client", "client"), ["client"]),
        (("robots", "client"), ["client", "robots"]),
    ],
)
def test_the_nearest_framework_is_found(plugins, imports, names):
    """agl init: by what a program imports and what that depends on; no list of frameworks."""
    assert sorted(each.name for each in integrations_of(imports, plugins)) == names


def test_a_framework_that_is_not_installed_is_found_by_its_import(plugins, monkeypatch):
    """agl init: the name of an import is the distribution's where nothing is installed."""
    monkeypatch.setattr(metadata, "packages_distributions", dict)
    assert [each.name for each in integrations_of(["client"], plugins)] == ["client"]
