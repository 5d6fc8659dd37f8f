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


@hookimpl
def agl_register_rewards(register: Register) -> None:
    register(
        "task_set",
        "agl_tasks._reward:TaskSet",
        summary="the answer to a task of a named set is right",
    )
