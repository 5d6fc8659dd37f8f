"""Without verl there is nothing here to collect; with it, it is imported for the CPU."""

import os
from importlib.util import find_spec

import pytest

if find_spec("verl"):
    from agl_verl.cpu import ENVIRONMENT

    os.environ.update(ENVIRONMENT)

collect_ignore_glob = [] if find_spec("verl") else ["test_*.py"]


@pytest.fixture(scope="session")
def defaults():
    """verl's own configuration, as its documentation shows it; composing it takes a second."""
    from tests.trainers.verl import verl_parts

    return verl_parts.default_config()


@pytest.fixture
def composed_once(monkeypatch, defaults):
    """Configurations begin with a copy of `defaults`."""
    from agl_verl import _compat
    from omegaconf import OmegaConf

    monkeypatch.setattr(_compat, "default_config", lambda: OmegaConf.create(defaults))
