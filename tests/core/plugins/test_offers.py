"""Names of a package that are imported when they are asked for."""

from __future__ import annotations

import sys

import pytest

from agl_core.errors import MissingExtraError, pip_line
from agl_core.plugins.requirements import Framework, offered

ABSENT = Framework("never_installed", "never-installed>=2", "mine", "mine")
PLACES = {
    "Plain": "_plain",
    "Framed": "_framed",
    "Old": "_old",
    "Broken": "_broken",
    "Typo": "_plain",
}
SOURCES = {
    "__init__": "",
    "_plain": "class Plain: pass",
    "_framed": "import never_installed.parts",
    "_old": "from json import never_had",
    "_broken": "import never_heard_of",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "agl_offers_sample"
    folder.mkdir()
    for name, source in SOURCES.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder.name
    for name in [each for each in sys.modules if each.startswith(folder.name)]:
        del sys.modules[name]


def test_a_name_is_imported_when_it_is_asked_for(package):
    assert f"{package}._plain" not in sys.modules
    plain = offered("Plain", package, PLACES, ABSENT)
    assert plain is sys.modules[f"{package}._plain"].Plain


def test_what_is_not_offered_is_no_attribute(package):
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Plane'"):
        offered("Plane", package, PLACES, ABSENT)
    with pytest.raises(AttributeError, match="Typo"):
        offered("Typo", package, PLACES, ABSENT)


def test_a_framework_that_is_missing_has_its_pip_line(package):
    with pytest.raises(MissingExtraError) as caught:
        offered("Framed", package, PLACES, Framework("other", "other", "other"), ABSENT)
    assert str(caught.value) == (f"Plugin 'mine' needs never-installed>=2: {pip_line('mine')}")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_framework_that_is_too_old_has_it_too(package):
    with pytest.raises(MissingExtraError, match="pip install 'json>=9'"):
        offered("Old", package, PLACES, Framework("json", "json>=9", "mine"))


def test_anything_else_that_cannot_be_imported_says_so_itself(package):
    with pytest.raises(ModuleNotFoundError, match="never_heard_of"):
        offered("Broken", package, PLACES, ABSENT)
