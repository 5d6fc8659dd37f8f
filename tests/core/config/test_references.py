import sys

import pytest

from agl_core.config.references import load_object
from agl_core.errors import ConfigError


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch):
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if name.startswith("_agl_file_"):
            del sys.modules[name]


def write(folder, name, text):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_modules_and_dotted_attributes():
    import json

    assert load_object("json:loads") is json.loads
    assert load_object("json:JSONDecoder.decode") is json.JSONDecoder.decode


def test_a_file_is_imported_once_and_finds_its_neighbours(tmp_path):
    write(tmp_path, "neighbour_of_agent.py", "value = 5")
    write(tmp_path, "agent.py", "from neighbour_of_agent import value\ncalls = []\ndef run(): ...")

    calls = load_object("agent.py:calls", base=tmp_path)

    assert load_object("agent.py:value", base=tmp_path) == 5
    assert load_object(f"{tmp_path / 'agent.py'}:calls") is calls


def test_files_of_one_name_are_two_modules(tmp_path):
    for number in ("1", "2"):
        (tmp_path / number).mkdir()
        write(tmp_path / number, "agent.py", f"number = {number}")

    assert [load_object(f"{n}/agent.py:number", base=tmp_path) for n in ("1", "2")] == [1, 2]


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("json", "write 'module:attribute'"),
        (":x", "write 'module:attribute'"),
        ("json:", "write 'module:attribute'"),
        ("C:\\data\\agent.py", "write 'module:attribute'"),
        ("absent.py:run", "there is no file"),
        ("no_such_package.module:run", "there is no module 'no_such_package'"),
        ("json.no_such_module:run", "there is no module 'json.no_such_module'"),
        ("json:loadz", "no attribute 'loadz'; it has "),
    ],
)
def test_wrong_references_say_what_is_wrong(reference, reason, tmp_path):
    with pytest.raises(ConfigError, match=reason) as caught:
        load_object(reference, base=tmp_path)
    assert repr(reference) in str(caught.value)


def test_what_a_users_module_raises_arrives_unchanged(tmp_path):
    write(tmp_path, "agent.py", "import no_such_dependency")
    write(tmp_path, "other.py", "1 / 0")

    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load_object("agent.py:run", base=tmp_path)
    with pytest.raises(ZeroDivisionError):
        load_object("other.py:run", base=tmp_path)


def test_a_file_that_fails_leaves_no_trace(tmp_path):
    file = write(tmp_path, "agent.py", "import fails_too")
    write(tmp_path, "fails_too.py", "1 / 0")
    modules, search_path = set(sys.modules), list(sys.path)

    with pytest.raises(ZeroDivisionError):
        load_object("agent.py:run", base=tmp_path)
    assert (set(sys.modules), sys.path) == (modules, search_path)

    file.write_text("def run(): ...", encoding="utf-8")
    assert load_object("agent.py:run", base=tmp_path)() is None
