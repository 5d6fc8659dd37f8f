"""The canonical scenario in each framework, as its contract has it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

from agl_testing.integration_contract import IntegrationContract

INTEGRATIONS: Final = Path(__file__).parents[1] / "integrations"
FORMS: Final = ("run", "arun", "stream", "astream")


def names() -> list[str]:
    """The folders of `INTEGRATIONS`: a framework, or one version of it."""
    return sorted(path.parent.name for path in INTEGRATIONS.glob("*/test_contract.py"))


def contract_of(framework: str) -> type[IntegrationContract]:
    """The framework's contract suite: how it is attached, and the program that is played."""
    module = importlib.import_module(f"tests.integrations.{framework}.test_contract")
    return next(
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, IntegrationContract)
        and each.__module__ == module.__name__
    )
