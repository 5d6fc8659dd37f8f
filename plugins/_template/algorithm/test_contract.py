"""The algorithm contract for this algorithm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from agl_template._algorithm import Template, TemplateOptions
from agl_testing.algorithm_contract import AlgorithmContract
from agl_testing.plugin_contract import PluginContract


class TestTemplate(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self) -> Callable[[], Template]:
        return lambda: Template(TemplateOptions())


class TestPlugin(PluginContract):
    plugin = "agl_template.plugin"
