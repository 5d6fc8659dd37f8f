"""Prompt optimisers are registered like everything else that a run chooses by name."""

from __future__ import annotations

import pytest
from agl_prompts import EditorOptions

from agl_core.app import load_plugins
from agl_core.config import validate

PLUGIN = """
import agl_core as agl
from tests.trainers.prompts import climbing

climb = climbing.climb
Options = climbing.ClimbOptions


@agl.hookimpl
def agl_register_optimizers(register):
    register("climb", f"{__name__}:climb", config=f"{__name__}:Options", summary="hill climbing")
"""


@pytest.fixture
def plugins(tmp_path):
    file = tmp_path / "climbing_plugin.py"
    file.write_text(PLUGIN)
    manager = load_plugins()
    manager.load_file(file)
    return manager


def test_a_plugin_file_offers_an_optimizer(plugins):
    registry = plugins.registry("optimizers")
    model = registry.options_model("climb")
    options = validate(model, {"editor": {"function": "json:dumps"}, "batch": 4})
    assert (options.batch, options.samples) == (4, 1)
    assert options.editor == EditorOptions(function="json:dumps")
    assert callable(registry.create("climb", options).optimize)
