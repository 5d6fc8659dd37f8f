"""Faces of packages whose names are imported on first use."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import agl_core

ROOT = Path(agl_core.__file__).parent
FACES = sorted(
    ".".join(path.parent.relative_to(ROOT.parent).parts)
    for path in ROOT.rglob("__init__.py")
    if "late(__name__)" in path.read_text(encoding="utf-8")
)
WHOLE = [face for face in FACES if face != "agl_core.interfaces"]
"""Faces all of whose names are late."""


@pytest.mark.parametrize("face", FACES)
def test_every_name_of_a_face_can_be_imported(face):
    module = import_module(face)
    for name in module.__all__:
        exec(f"from {face} import {name}", {})
        assert vars(module)[name] is not None


@pytest.mark.parametrize("face", WHOLE)
def test_a_face_lists_its_names_in_order(face):
    module = import_module(face)
    assert module.__all__ == sorted(module.__all__) == dir(module)


@pytest.mark.parametrize("face", FACES)
def test_an_unknown_name_is_refused(face):
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from {face} import nothing", {})
    with pytest.raises(AttributeError, match=f"module '{face}' has no attribute 'nothing'"):
        _ = import_module(face).nothing


def test_a_name_imports_its_own_module_only():
    program = """
import json, sys
import agl_core
before = set(sys.modules)
agl_core.AglError
print(json.dumps([name for name in set(sys.modules) - before if name.startswith("agl_core")]))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert json.loads(done.stdout) == ["agl_core.errors"]
