"""Exports as Parquet, read back by the library itself."""

from __future__ import annotations

import io
import json

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agl_records import ExportOptions, TrajectoryRow, export_from
from agl_records._files import _ROWS_PER_GROUP, Parquet

from agl_core._builtin import load_plugins
from tests.plugins.records.recorded import CONFIG, Run, spoken


@pytest.fixture
async def run(tmp_path):
    run = Run(tmp_path / "run")
    await run.open()
    yield run
    await run.store.close()


async def export(run, format_):
    stream = io.BytesIO()
    options = ExportOptions(format=format_)
    await export_from(run.store, stream, options, plugins=load_plugins(), config=CONFIG)
    return stream.getvalue()


async def test_a_table_has_the_rows_of_the_lines(run):
    for reward in (0.5, 1.0):
        script = spoken(reward)
        script.reward(0.0, channel="style", why="no price", agent="writer")
        await run.add(script)

    table = pq.read_table(io.BytesIO(await export(run, "parquet")))
    lines = [json.loads(line) for line in (await export(run, "jsonl")).splitlines()]

    rows = table.to_pylist()
    for row in rows:
        row["messages"], row["tools"] = json.loads(row["messages"]), json.loads(row["tools"])
    assert rows == lines
    assert table.schema.field("token_ids").type == pa.list_(pa.int32())
    assert table.schema.field("reward").type == pa.float64()


async def test_an_empty_export_is_a_table_with_all_columns(run):
    table = pq.read_table(io.BytesIO(await export(run, "parquet")))

    assert table.num_rows == 0
    assert "token_ids" in table.column_names


async def test_many_rows_are_several_groups(run):
    await run.add(spoken(1.0))
    (row,) = (await export(run, "jsonl")).splitlines()
    stream = io.BytesIO()
    writer = Parquet(stream)
    typed = msgspec.convert(json.loads(row), TrajectoryRow)
    for _ in range(_ROWS_PER_GROUP + 1):
        writer.write(typed)
    writer.close()

    file = pq.ParquetFile(io.BytesIO(stream.getvalue()))
    assert file.num_row_groups == 2
    assert file.metadata.num_rows == _ROWS_PER_GROUP + 1
