"""A run without components: what the commands hand to the application, and what they show of it."""

from __future__ import annotations

import asyncio
import sys
import types

import pytest

import agl_core.app
from agl_core._builtin import load_plugins
from agl_core.app import facade
from tests.core.reports import EVALUATION, REPORT, STEPS


class FakeApp(types.ModuleType):
    """Stands in for ``agl_core.app``: reports two steps and one evaluation."""

    def __init__(self):
        super().__init__("agl_core.app")
        self.__path__ = agl_core.app.__path__
        self.made = []
        self.error = None
        app = self

        class App:
            def __init__(self, config, *, observers=(), plugins=None):
                self.config, self.observers, self.plugins = config, observers, plugins
                app.made.append(self)

            async def train(self):
                if app.error is not None:
                    raise app.error
                for observer in self.observers:
                    observer.started(self.config)
                    observer.evaluation(EVALUATION)
                    for step in STEPS:
                        observer.step(step)
                    observer.finished(REPORT)
                return REPORT

        self.App = App
        self.run_blocking = asyncio.run

    def train(self, config):
        """What a script calls."""
        with facade._watching((), load_plugins(), shown=True) as observers:
            return asyncio.run(self.App(config, observers=observers).train())


@pytest.fixture
def app(monkeypatch):
    fake = FakeApp()
    monkeypatch.setitem(sys.modules, "agl_core.app", fake)
    return fake
