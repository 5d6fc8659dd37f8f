from __future__ import annotations

from typing import ClassVar

import pytest
from agl_testing.optimizer_contract import OptimizerContract

FACTORY = "agl_gepa._optimizer:gepa_optimizer"
MODEL = "agl_gepa:GepaOptions"


class TestGepa(OptimizerContract):
    factory = FACTORY
    model = MODEL


class Several(OptimizerContract):
    """Several children and calls of the editor at once, and merges."""

    factory = FACTORY
    model = MODEL
    options: ClassVar = {"proposals": 2, "merge": True}
    __test__ = False


@pytest.mark.parametrize(
    "rule",
    [
        Several.test_it_never_exceeds_its_budget,
        Several.test_it_resumes_after_an_interruption_at_every_point,
    ],
)
async def test_children_at_once_keep_the_budget_and_resume(tmp_path, rule):
    await rule(Several(), tmp_path)
