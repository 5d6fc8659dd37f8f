"""Tasks as a run loads them, with the installed plugins."""

from functools import cache

from agl_core._builtin import load_plugins
from agl_core.app.parts import make_tasks
from agl_core.config import TasksConfig

plugins = cache(load_plugins)


def load_tasks(source, columns=None):
    return make_tasks(source, TasksConfig(columns=columns or {}), "train", plugins())
