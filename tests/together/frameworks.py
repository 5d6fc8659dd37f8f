"""The frameworks that can live in one environment: those with a ``mixed.py`` beside their tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Ask = Callable[..., Awaitable[Any]]


def programs() -> dict[str, Ask]:
    """By the folder of its tests, what asks an agent of each framework that is installed."""
    found: dict[str, Ask] = {}
    for file in sorted(Path(__file__).parents[1].glob("integrations/*/mixed.py")):
        name = file.parent.name
        try:
            found[name] = import_module(f"tests.integrations.{name}.mixed").ask
        except ModuleNotFoundError as error:
            missing = error.name or "."
            if "." in missing or missing.startswith(("tests", "agl_")):
                raise
    return found
