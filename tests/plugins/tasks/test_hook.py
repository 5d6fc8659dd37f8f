"""A set of tasks of a third party, by `agl_register_tasks`."""

import agl_core as agl
from agl_core.app.parts import make_tasks
from agl_core.config import TasksConfig
from agl_core.plugins import PluginManager, Source


class Riddles:
    @agl.hookimpl
    def agl_register_tasks(self, register):
        register("riddles", f"{__name__}:riddles")
        register(".txt", f"{__name__}:lines")
        register("here:", f"{__name__}:fetch")


def riddles(split):
    return [{"input": f"{split} riddle", "expected": "wind"}]


def lines(path, label):
    yield from path.read_text().splitlines()


def fetch(address, label, read):
    yield from read(address.removeprefix("here://"))


def test_a_plugin_offers_a_set_by_name():
    plugins = PluginManager(environ={})
    plugins.register(Riddles(), Source(name="mine"))

    (task,) = make_tasks(None, TasksConfig(train="riddles", val="riddles"), "val", plugins)

    assert (task.input, task.expected) == ("val riddle", "wind")


def test_a_plugin_reads_files_and_addresses(tmp_path):
    plugins = PluginManager(environ={})
    plugins.register(Riddles(), Source(name="mine"))
    file = tmp_path / "t.TXT"
    file.write_text("a\nb\n")

    for source in (file, str(file), f"here://{file}"):
        tasks = make_tasks(source, TasksConfig(), "train", plugins)
        assert [task.input for task in tasks] == ["a", "b"]
