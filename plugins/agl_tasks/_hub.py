"""Sets that the package ``datasets`` reads, from its cache or its hub."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

from agl_tasks._rows import Split, TaskRow

_ANSWER: Final = "####"
"""What stands before the number in an answer of gsm8k."""


def gsm8k(split: Split) -> list[TaskRow]:
    """Return school mathematics; the split ``val`` is the set's ``test``."""
    rows = _load("openai/gsm8k", "main", "train" if split == "train" else "test")
    return [
        {
            "id": f"gsm8k-{split}-{number}",
            "input": row["question"],
            "expected": row["answer"].rpartition(_ANSWER)[2].strip().replace(",", ""),
            "metadata": {"set": "math"},
        }
        for number, row in enumerate(rows)
    ]


def _load(path: str, name: str, split: str) -> Iterable[dict[str, Any]]:
    return import_module("datasets").load_dataset(path, name, split=split)
