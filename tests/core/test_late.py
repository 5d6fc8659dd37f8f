"""Faces of packages whose names are imported on first use."""

from __future__ import annotations

import ast
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
EVERY_FACE = [file for file in sorted(ROOT.glob("*/__init__.py")) if file.parent.name != "cli"]
"""The package of the program ``agl`` has none."""


@pytest.mark.parametrize("face", FACES)
def test_every_name_of_a_face_can_be_imported(face):
    module = import_module(face)
    for name in module.__all__:
        exec(f"from {face} import {name}", {})
        assert vars(module)[name] is not None


@pytest.mark.parametrize("face", FACES)
def test_a_face_lists_its_names_in_order(face):
    module = import_module(face)
    assert module.__all__ == sorted(module.__all__) == dir(module)


@pytest.mark.parametrize("file", EVERY_FACE, ids=lambda file: file.parent.name)
def test_a_face_writes_each_name_once(file):
    """As `X as X`, which type checkers read as public; see `agl_core.faces`."""
    package = f"agl_core.{file.parent.name}"
    body = ast.parse(file.read_text(encoding="utf-8"))
    imported = [
        (name.name, name.asname)
        for node in ast.walk(body)
        if isinstance(node, ast.ImportFrom) and node.module.startswith(package)
        for name in node.names
    ]
    assert imported
    assert [name for name, public in imported if name != public] == []
    assert not any(ast.unparse(node).startswith("__all__ =") for node in body.body)


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
