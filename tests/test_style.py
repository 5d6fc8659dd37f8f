"""Rules that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = ("agl_core", "integrations", "trackers", "trainers", "examples")
FRAMEWORKS = re.compile(
    r"agent_?framework|agentscope|autogen|crew_?ai|dspy|lang_?chain|lang_?graph|llama_?index|"
    r"openai[-_ ]agents|pydantic[-_ ]ai|smolagents|\btrl\b|\bverl\b",
    re.IGNORECASE,
)
MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 60


def files(*folders):
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in found]


def nodes(path, *kinds):
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


def lines_without_docstring(function):
    length = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
        length -= first.end_lineno - first.lineno + 1
    return length


@pytest.mark.parametrize("path", files(*SHIPPED))
def test_files_and_functions_stay_small(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES_OF_A_FILE
    for function in nodes(path, ast.FunctionDef, ast.AsyncFunctionDef):
        assert lines_without_docstring(function) <= MOST_LINES_OF_A_FUNCTION, function.name


@pytest.mark.parametrize("path", files(*SHIPPED))
def test_errors_are_caught_by_name_or_with_a_reason(path):
    lines = path.read_text().splitlines()
    for handler in nodes(path, ast.ExceptHandler):
        line = lines[handler.lineno - 1]
        assert handler.type is not None, line
        broad = isinstance(handler.type, ast.Name) and handler.type.id in (
            "BaseException",
            "Exception",
        )
        raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
        assert not broad or raises or "#" in line, line


@pytest.mark.parametrize("path", files("agl_core", "integrations", "trackers", "trainers"))
def test_only_the_command_line_prints(path):
    if "cli" in path.relative_to(ROOT).parts:
        return
    for call in nodes(path, ast.Call):
        assert getattr(call.func, "id", "") != "print", call.lineno


@pytest.mark.parametrize("path", files("agl_core"))
def test_core_spells_no_framework(path):
    assert FRAMEWORKS.findall(path.read_text()) == []


@pytest.mark.parametrize("path", files(*SHIPPED))
def test_names_say_what_a_thing_is(path):
    assert not re.search(r"utils?|helpers?|misc|common", path.stem)
    for node in nodes(path, ast.ClassDef):
        assert node.name == "PluginManager" or not node.name.endswith(
            ("Helper", "Manager", "Util", "Utils")
        )


@pytest.mark.parametrize("path", files(*SHIPPED))
def test_nothing_is_left_for_later(path):
    assert re.findall(r"\b(TODO|FIXME|XXX|HACK)\b", path.read_text()) == []
