"""A run with the engine of three words, and the warnings about names."""

from pathlib import Path

import pytest
from agl_compat._names import renamed

import tests.core.app.bandit_plugin as bandit


@pytest.fixture(autouse=True)
def warned():
    """Every test begins without warnings that were given."""
    renamed.cache_clear()


@pytest.fixture
def settings(tmp_path):
    return {
        "directory": str(tmp_path),
        "plugins": [str(Path(bandit.__file__))],
        "engine": {"name": "bandit"},
        "model": "bandit",
        "algorithm.lr": 1.0,
        "algorithm.group_size": 4,
        "train.steps": 2,
        "train.tasks_per_step": 2,
    }
