import sys

import pytest

from agl_core.config.references import load_object, load_tasks
from agl_core.errors import ConfigError
from agl_core.types import Task


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


def test_jsonl_as_windows_writes_it(tmp_path):
    file = tmp_path / "my set" / "t.jsonl"
    file.parent.mkdir()
    file.write_bytes(
        '{"input": "“quoted”", "expected": "😀"}\r\n\r\n"line\u2028separator"\r\n'.encode(
            "utf-8-sig"
        )
    )

    first, second = load_tasks(str(file))

    assert (first.input, first.expected) == ("“quoted”", "😀")
    assert second.input == "line\u2028separator"
    assert load_tasks(file) == load_tasks("my set/t.jsonl", base=tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"input": ', "row 2 is not JSON"),
        ('{"input": NaN}', "row 2 is not JSON: NaN"),
        ('{"input": 1, "colour": 2}', r"row 2: .*'colour'"),
        ('{"id": 7, "input": 1}', "row 2: "),
        ('{"id": "0", "input": 1}', "row 2: the id '0' was already used by row 1"),
    ],
)
def test_a_bad_row_is_named(tmp_path, line, reason):
    file = write(tmp_path, "t.jsonl", f'{{"input": 1}}\n{line}\n')

    with pytest.raises(ConfigError, match=reason) as caught:
        load_tasks(file)
    assert str(file) in str(caught.value)


def test_rows_callables_and_references(tmp_path):
    write(tmp_path, "data.py", "rows = [1, {'input': 2}]\ndef make(): return iter(rows)")

    for source in ("data.py:rows", "data.py:make", [1, {"input": 2}], lambda: [1, {"input": 2}]):
        tasks = load_tasks(source, base=tmp_path)
        assert [(task.id, task.input) for task in tasks] == [("0", 1), ("1", 2)]
    given = [Task(id="a", input=1)]
    assert load_tasks(given) == given


@pytest.mark.parametrize("source", [[], list, "empty.jsonl"])
def test_an_empty_data_set_is_an_error(source, tmp_path):
    write(tmp_path, "empty.jsonl", "\n")

    with pytest.raises(ConfigError, match="is empty"):
        load_tasks(source, base=tmp_path)


@pytest.mark.parametrize("source", [lambda: None, lambda: "text", {"input": 1}, 5])
def test_what_is_no_rows_is_an_error(source):
    with pytest.raises(ConfigError, match="not rows"):
        load_tasks(source)


@pytest.mark.parametrize("content", [None, b'"\xe9"'])
def test_unreadable_files_are_named(tmp_path, content):
    file = tmp_path / "t.jsonl"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError, match=r"t\.jsonl"):
        load_tasks(file)
