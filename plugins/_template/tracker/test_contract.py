"""The tracker contract for this tracker."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from agl_template._options import TemplateOptions
from agl_template._tracker import TemplateTracker
from agl_testing.plugin_contract import PluginContract
from agl_testing.tracker_contract import Kept, TrackerContract

from agl_core.interfaces import TrackedRun


class TestTemplate(TrackerContract):
    @pytest.fixture
    def make(self) -> Callable[[], TemplateTracker]:
        return lambda: TemplateTracker(TemplateOptions())

    @pytest.fixture
    def read(self) -> Callable[[TrackedRun], Kept]:
        """Return a function that reads through the service's own client."""

        def kept(run: TrackedRun) -> Kept:
            written = json.loads((run.directory / TemplateOptions().file).read_text())
            numbers: dict[str, dict[int, list[float]]] = {}
            for step, rows in written["numbers"].items():
                for name, value in (pair for row in rows for pair in row.items()):
                    numbers.setdefault(name, {}).setdefault(int(step), []).append(value)
            return Kept(numbers=numbers, settings=written["settings"], facts=written["facts"])

        return kept


class TestPlugin(PluginContract):
    plugin = "agl_template.plugin"
