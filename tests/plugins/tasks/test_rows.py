"""Tasks from every place that rows come from."""

import dataclasses
import datetime as dt
import enum
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import pydantic
import pytest

from agl_core.config import RunConfig
from agl_core.config.loader import load_config
from agl_core.errors import ConfigError, MissingExtraError, pip_line
from agl_core.types import Task
from tests.plugins.tasks.loading import load_tasks

GSM = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]
NAMED = {"input": "question", "expected": "answer"}


def write(folder, name, text):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


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
    assert load_tasks(file) == [first, second]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"input": ', "row 2 is not JSON"),
        ('{"input": NaN}', "row 2 is not JSON: NaN"),
        ('{"input": 1, "expectd": 2}', r"row 2: .*'expectd'; did you mean 'expected'"),
        ('{"id": 7.5, "input": 1}', "row 2: the id 7.5 is a float"),
        ('{"id": true, "input": 1}', "row 2: the id True is a bool"),
        ('{"id": 0, "input": 1}', "row 2: the id '0' was already used by row 1"),
        ('{"id": "0", "input": 1}', "row 2: the id '0' was already used by row 1"),
    ],
)
def test_a_bad_row_is_named(tmp_path, line, reason):
    file = write(tmp_path, "t.jsonl", f'{{"input": 1}}\n{line}\n')

    with pytest.raises(ConfigError, match=reason) as caught:
        load_tasks(file)
    assert str(file) in str(caught.value)


def test_a_row_after_empty_lines_is_named_with_its_line(tmp_path):
    file = write(tmp_path, "t.jsonl", "\n1\n\n{\n")

    with pytest.raises(ConfigError, match=r"row 2 \(line 4\) is not JSON"):
        load_tasks(file)


@pytest.mark.parametrize(
    "name",
    ["t.jsonl", "my.set.csv", "12:30.json", "~/t.csv", "a/b.JSONL", "unknown.rows"],
)
def test_files_count_from_the_configuration(tmp_path, name):
    config = load_config(write(tmp_path, "run.toml", f"[tasks]\ntrain = '{name}'\n"))

    assert config.tasks.train == str(tmp_path / Path(name).expanduser())


@pytest.mark.parametrize("name", ["math", "pkg.mod:rows", "pkg:sets.train", "s3://b/t.jsonl"])
def test_references_sets_and_addresses_stay(tmp_path, name):
    config = load_config(write(tmp_path, "run.toml", f"[tasks]\nval = '{name}'\n"))

    assert config.tasks.val == name


def test_an_address_of_another_kind_lists_the_kinds():
    with pytest.raises(ConfigError, match=r"Unknown task 'gopher:'.*\.csv, \.json, \.jsonl"):
        load_tasks("gopher://host/t.jsonl")


def test_rows_callables_and_references(tmp_path):
    write(tmp_path, "data.py", "rows = [1, {'input': 2}]\ndef make(): return iter(rows)")

    references = (f"{tmp_path}/data.py:rows", f"{tmp_path}/data.py:make")
    for source in (*references, [1, {"input": 2}], lambda: [1, {"input": 2}]):
        tasks = load_tasks(source)
        assert [(task.id, task.input) for task in tasks] == [("0", 1), ("1", 2)]
    given = [Task(id="a", input=1)]
    assert load_tasks(given) == given


@pytest.mark.parametrize("source", [[], list, "empty.jsonl"])
def test_an_empty_data_set_is_an_error(source, tmp_path):
    file = write(tmp_path, "empty.jsonl", "\n")

    with pytest.raises(ConfigError, match="is empty"):
        load_tasks(file if isinstance(source, str) else source)


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


def test_columns_that_are_no_fields_are_metadata_and_are_stated_once(tmp_path, caplog):
    """G7: every other column reaches the task, and one message says where."""
    rows = [{"id": 7 + n, "input": n, "colour": "red", "metadata": {"n": n}} for n in range(9)]
    file = write(tmp_path, "t.jsonl", "\n".join(map(json.dumps, rows)))

    tasks = load_tasks(file)

    assert tasks[0] == Task(id="7", input=0, metadata={"n": 0, "colour": "red"})
    (message,) = [record.getMessage() for record in caplog.records]
    assert "the columns colour are no fields" in message
    assert str(file) in message


def test_rows_without_an_input_are_the_input_and_this_is_stated_once(caplog):
    """G7: question and answer are not silently the input; the message names tasks.columns."""
    tasks = load_tasks([{"id": 3, **GSM[0]}, {"id": "b", "expected": 5, **GSM[1]}])

    assert tasks == [
        Task(id="3", input=GSM[0]),
        Task(id="b", input=GSM[1], expected=5),
    ]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "task.input is a mapping with question, answer" in message
    assert "tasks.columns" in message


def test_columns_can_be_named(caplog):
    """G7: tasks.columns maps the columns of a data set as it is."""
    rows = [{**row, "level": 1} for row in GSM]

    tasks = load_tasks(rows, columns={**NAMED, "id": "question"})

    assert tasks[1] == Task(id="2 + 2?", input="2 + 2?", expected="4", metadata={"level": 1})
    assert not caplog.records
    with pytest.raises(ConfigError, match=r"row 2: there is no column 'answer'.*expected.*'level'"):
        load_tasks([GSM[0], {"question": "", "level": 2}], columns=NAMED)
    with pytest.raises(ConfigError, match="row 1: the row is a str, which has no columns"):
        load_tasks(["text"], columns=NAMED)


def test_columns_come_from_the_configuration(tmp_path):
    write(tmp_path, "rows.csv", "question,answer\n1 + 1?,2\n")
    text = '[tasks]\ntrain = "rows.csv"\ncolumns = { input = "question", expected = "answer" }\n'

    config = load_config(write(tmp_path, "run.toml", text))

    assert config.tasks.train == str(tmp_path / "rows.csv")
    assert config.tasks.columns.model_dump(exclude_none=True) == NAMED
    with pytest.raises(ConfigError, match=r"tasks\.columns\.answer"):
        load_config(
            write(tmp_path, "bad.toml", text.replace("expected =", "answer =")),
        )
    assert RunConfig().tasks.columns.model_dump(exclude_none=True) == {}


def test_csv(tmp_path):
    """G7: cells are text, an empty one is None, and quoted cells may hold anything."""
    text = '\ufeffid,question,answer\r\n4,"a, ""b""\nc",\r\n\r\n5,😀,3\r\n'
    file = write(tmp_path, "T.CSV", text)

    assert load_tasks(file, columns=NAMED) == [
        Task(id="4", input='a, "b"\nc', expected=None),
        Task(id="5", input="😀", expected="3"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("t.csv", "a,b\n1,2\n1,2,3\n", r"row 2 \(line 3\) has 3 cells.*2 columns"),
        ("t.csv", "a,b\n1\n", r"row 1 \(line 2\) has 1 cells"),
        ("t.csv", "a,a\n1,2\n", "two columns 'a'"),
        ("t.csv", 'a\n"1', "is not CSV"),
        ("t.csv", "a\n", "is empty"),
        ("t.csv", "", "is empty"),
        ("t.json", '{"data": []}', "holds a JSON dict, not an array"),
        ("t.json", "[1, NaN]", "is not JSON: NaN"),
        ("t.json", "[" * 100_000, "is not JSON"),
        ("t.json", "[]", "is empty"),
        ("t.json", '[1, {"id": []}]', "row 2: the id .* is a list"),
        ("t.jsonl", "[" * 100_000, "row 1 is not JSON"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, name, text, reason):
    file = write(tmp_path, name, text)

    with pytest.raises(ConfigError, match=reason) as caught:
        load_tasks(file)
    assert str(file) in str(caught.value)


def test_json(tmp_path):
    """G7: an array of rows."""
    rows = [{"input": 1, "expected": [2]}, "text"]
    file = write(tmp_path, "t.json", json.dumps(rows))

    assert load_tasks(file) == [Task(id="0", input=1, expected=[2]), Task(id="1", input="text")]


def test_parquet_without_its_library_names_the_pip_line(tmp_path, monkeypatch):
    """G7: Parquet is an extra."""
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    with pytest.raises(MissingExtraError, match=re.escape(pip_line("parquet"))):
        load_tasks(tmp_path / "t.parquet")


class Point(pydantic.BaseModel):
    x: int
    when: dt.date


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Data:
    input: str
    expected: object


class Record(msgspec.Struct):
    input: str


def test_rows_of_every_kind():
    """C14: pydantic rows and the like are rows; what they hold becomes JSON."""
    day = dt.date(2026, 1, 2)

    tasks = load_tasks(
        [
            Point(x=1, when=day),
            Data(input="q", expected=Point(x=2, when=day)),
            Record(input="r"),
            Named(9, "n"),
            {"input": {"p": Point(x=3, when=day), "c": Colour.RED, "d": day, "t": (1, 2)}},
            Task(id=11, input=Point(x=4, when=day)),
        ]
    )

    text = "2026-01-02"
    assert [task.input for task in tasks] == [
        {"x": 1, "when": text},
        "q",
        "r",
        "n",
        {"p": {"x": 3, "when": text}, "c": "red", "d": text, "t": [1, 2]},
        {"x": 4, "when": text},
    ]
    assert tasks[1].expected == {"x": 2, "when": text}
    assert [tasks[3].id, tasks[5].id] == ["9", "11"]


class Named(NamedTuple):
    id: int
    input: str


class Opaque:
    """Has nothing but a repr."""


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([1, Opaque()], "row 2: the row is a .*Opaque"),
        ([{"input": {"a": [Opaque()]}}], r"row 1: input\.a\[0\] is a .*Opaque"),
        ([{"input": 1, "expected": Opaque()}], "row 1: expected is a .*Opaque"),
        ([{"input": 1, "other": {1, 2}}], "row 1: other is a set"),
        ([Task(id="a", metadata={"x": Opaque()})], r"row 1: metadata\.x is a .*Opaque"),
        ([{"input": float("nan")}], "row 1: input is nan"),
        ([{("a", "b"): 1}], r"row 1: the column name \('a', 'b'\) is a tuple"),
        ([{"input": 1, "a": 1, "metadata": {"a": 2}}], r"row 1: .*\['a'\] both as"),
        (Opaque(), "gives a Opaque, not rows"),
        ({"train": [1], "test": [2]}, "with the keys train, test, not rows.*one split"),
    ],
)
def test_what_has_no_json_form_is_an_error(rows, reason):
    """C14: no task holds a repr; the error names row and type."""
    with pytest.raises(ConfigError, match=reason):
        load_tasks(rows)


def test_an_open_file_is_an_error(tmp_path):
    """C14: its lines are no tasks."""
    with (
        write(tmp_path, "t.jsonl", '{"input": 1}').open(encoding="utf-8") as file,
        pytest.raises(ConfigError, match=r"an open file .*give its path"),
    ):
        load_tasks(file)


def test_a_value_that_contains_itself_is_an_error():
    loop = []
    loop.append(loop)

    with pytest.raises(ConfigError, match="row 1: input is nested too deep"):
        load_tasks([{"input": loop}])
