"""A configuration key that nothing reads would be a silent lie."""

import ast
from pathlib import Path

import pytest
from pydantic import BaseModel

import agl_core
from agl_core.config import _models as models

ROOT = Path(agl_core.__file__).parent
TRAINERS = Path(__file__).parents[3] / "trainers"
SECTIONS = [
    section
    for section in vars(models).values()
    if isinstance(section, type) and issubclass(section, BaseModel) and section.model_fields
]


def attributes_read():
    """Names of all attributes that core and trainers load, outside the module with the keys."""
    read = set()
    for file in (*ROOT.rglob("*.py"), *TRAINERS.rglob("*.py")):
        if file == ROOT / "config" / "_models.py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
    return read


@pytest.fixture(scope="module")
def read():
    return attributes_read()


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_is_read(section, read):
    unread = sorted(set(section.model_fields) - read)

    assert not unread, f"{section.__name__}: nothing in core and trainers reads {', '.join(unread)}"


def test_the_scan_would_notice_an_unread_key(read):
    assert "a_key_that_nobody_reads" not in read
    assert len(SECTIONS) >= 12
