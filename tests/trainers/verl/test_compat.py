"""What is needed of verl is there, and a verl that is missing or of another version is told."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import warnings
from pathlib import Path

import pytest
from agl_verl import _compat
from agl_verl._engine import VerlEngine
from agl_verl._options import VerlOptions
from packaging.requirements import Requirement

from agl_core._builtin import load_plugins
from agl_core.errors import ConfigError, MissingExtraError, pip_line
from tests.trainers.verl import verl_parts  # noqa: F401 (verl imported without its warnings)

VERSION = importlib.metadata.version


@pytest.fixture
def installed(monkeypatch):
    """Says which version of verl is installed; None: it is not."""

    def of(version):
        def found(name):
            if name != "verl":
                return VERSION(name)
            if version is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr(importlib.metadata, "version", found)

    return of


@pytest.mark.parametrize("name", sorted(_compat._PLACES))
def test_what_is_taken_of_verl_exists(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert getattr(_compat, name) is not None


def test_nothing_is_listed_that_nobody_takes():
    package = Path(_compat.__file__).parent
    taken = "".join(file.read_text() for file in package.rglob("*.py"))
    assert [name for name in _compat._PLACES if f"_compat.{name}" not in taken] == []


def test_nobody_else_imports_verl():
    package = Path(_compat.__file__).parent
    lines = [
        line.strip()
        for file in package.rglob("*.py")
        if file.name != "_compat.py"
        for line in file.read_text().splitlines()
    ]
    assert not [line for line in lines if line.startswith(("import verl", "from verl"))]


def test_a_name_that_is_not_listed_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = _compat.Nonsense


def test_the_extra_states_the_same_range():
    lines = importlib.metadata.requires("agl-core") or []
    (mine,) = [each for each in map(Requirement, lines) if each.name == "verl"]
    assert mine.specifier == _compat.SUPPORTED


def test_the_installed_version_passes():
    _compat.check_version()


@pytest.mark.parametrize("version", ["0.8.0", "0.9.0", "0.10.0", "1.0"])
def test_a_version_outside_the_range_is_one_clear_error(installed, version):
    installed(version)
    with pytest.raises(ConfigError) as raised:
        VerlEngine(VerlOptions(device="cpu"), None)
    text = str(raised.value)
    assert version in text
    assert "0.9.1" in text
    assert "pip install 'verl" in text


def test_patches_of_the_newest_version_pass(installed):
    installed("0.9.7")
    _compat.check_version()


def test_verl_that_is_missing_is_the_extras_pip_line(installed, monkeypatch):
    installed(None)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "verl" else found(name)
    )
    with pytest.raises(MissingExtraError, match=re.escape(pip_line("verl"))) as raised:
        load_plugins().registry("engines").create("verl", VerlOptions(device="cpu"), None)
    assert "verl" in raised.value.needs
    assert raised.value.extra == "verl"


def test_verls_own_defaults_are_read_again_and_again():
    first, second = _compat.default_config(), _compat.default_config()
    assert first == second
    assert first is not second


def test_verls_functions_are_found_by_its_names():
    assert callable(_compat.advantage_estimator("grpo"))
    assert callable(_compat.policy_loss("vanilla"))
    assert {"vllm", "sglang"} <= set(_compat.rollout_names())
