"""A set of tasks of a third party, by `agl_register_tasks`."""

import agl_core as agl
from agl_core.app.parts import make_tasks
from agl_core.config import TasksConfig
from agl_core.plugins import PluginManager, Source


class Riddles:
    @agl.hookimpl
    def agl_register_tasks(self, register):
        register("riddles", f"{__name__}:riddles")


def riddles(split):
    return [{"input": f"{split} riddle", "expected": "wind"}]


def test_a_plugin_offers_a_set_by_name():
    plugins = PluginManager(environ={})
    plugins.register(Riddles(), Source(name="mine"))

    (task,) = make_tasks(None, TasksConfig(train="riddles", val="riddles"), "val", plugins)

    assert (task.input, task.expected) == ("val riddle", "wind")
