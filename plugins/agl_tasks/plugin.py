"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_tasks(register: Register) -> None:
    for name, target, summary in (
        ("math", "_math:math", "word problems whose answer is a number (generated)"),
        ("coding", "_coding:coding", "what a short Python program prints (generated)"),
        ("reasoning", "_reasoning:reasoning", "who is first by some comparisons (generated)"),
        ("sql-generation", "_sql:sql_generation", "questions to small databases (generated)"),
        ("gsm8k", "_hub:gsm8k", "school mathematics, read by the package datasets"),
    ):
        register(name, f"agl_tasks.{target}", summary=summary)
    for ending, reader, summary in (
        (".jsonl", "jsonl", "a JSON value a line"),
        (".json", "json_array", "an array of JSON values"),
        (".csv", "csv_table", "a table as CSV"),
        (".parquet", "parquet_table", "a table as Parquet"),
    ):
        register(ending, f"agl_tasks._files:{reader}", summary=summary)
    register("<object>", "agl_tasks._objects:rows_of", summary="rows, and tables of libraries")


@hookimpl
def agl_register_rewards(register: Register) -> None:
    register(
        "task_set",
        "agl_tasks._reward:TaskSet",
        summary="the answer to a task of a named set is right",
    )
