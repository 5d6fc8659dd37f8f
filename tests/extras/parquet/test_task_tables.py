"""Tasks from the tables of other libraries."""

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agl_core.errors import ConfigError
from agl_core.types import Task
from tests.plugins.tasks.loading import load_tasks

ROWS = {"question": ["1 + 1?", "2 + 2?"], "answer": [2, None], "tags": [["a"], []]}
NAMED = {"input": "question", "expected": "answer"}
TASKS = [
    Task(id="0", input="1 + 1?", expected=2, metadata={"tags": ["a"]}),
    Task(id="1", input="2 + 2?", expected=None, metadata={"tags": []}),
]


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS).convert_dtypes(),
        pa.table(ROWS),
        datasets.Dataset.from_dict(ROWS),
        datasets.Dataset.from_dict(ROWS).to_iterable_dataset(),
        lambda: pd.DataFrame(ROWS),
    ],
    ids=["pandas", "pandas-nullable", "arrow", "datasets", "datasets-stream", "callable"],
)
def test_tables_are_read_by_row(table):
    """C14, G7: DataFrames, arrow tables and Hugging Face data sets give one task a row."""
    assert load_tasks(table, columns=NAMED) == TASKS


def test_parquet(tmp_path):
    """G7: a Parquet file is read as any other."""
    pq.write_table(pa.table(ROWS), tmp_path / "t.parquet")

    assert load_tasks(tmp_path / "t.parquet", columns=NAMED) == TASKS


@pytest.mark.parametrize("content", [None, b"no parquet"])
def test_what_is_no_parquet_is_named(tmp_path, content):
    file = tmp_path / "t.parquet"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError, match=r"t\.parquet"):
        load_tasks(file)


def test_arrays_and_scalars_become_plain_values():
    """C14: no repr of an array."""
    row = {"id": np.int64(4), "input": np.array([[1, 2]]), "expected": np.float32(0.5)}

    (task,) = load_tasks([row])

    assert task == Task(id="4", input=[[1, 2]], expected=0.5)
    assert type(task.expected) is float


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (pd.DataFrame(ROWS).iterrows(), r"row 1: .*is a pandas\..*Series"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns 'a'"),
        (pa.table([[1], [2]], names=["a", "a"]), "two columns 'a'"),
        (datasets.DatasetDict(train=datasets.Dataset.from_dict(ROWS)), "keys train.*one split"),
    ],
    ids=["iterrows", "duplicate-column", "duplicate-arrow-column", "splits"],
)
def test_what_is_no_row_is_an_error(rows, reason):
    """C14: the error names row and type."""
    with pytest.raises(ConfigError, match=reason):
        load_tasks(rows)
