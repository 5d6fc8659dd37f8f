"""Plugins: their hooks, loading, and the objects that they register by name."""

from agl_core.plugins._manager import PluginInfo as PluginInfo
from agl_core.plugins._manager import PluginManager as PluginManager
from agl_core.plugins._manager import PluginState as PluginState
from agl_core.plugins._manager import Source as Source
from agl_core.plugins._manager import hook_names as hook_names
from agl_core.plugins._manager import installed as installed
from agl_core.plugins._manager import source_of as source_of
from agl_core.plugins._specs import PROJECT as PROJECT
from agl_core.plugins._specs import hookimpl as hookimpl
from agl_core.plugins._specs import hookspec as hookspec
from agl_core.plugins.registry import CORE as CORE
from agl_core.plugins.registry import KINDS as KINDS
from agl_core.plugins.registry import Kind as Kind
from agl_core.plugins.registry import Registration as Registration
from agl_core.plugins.registry import Registry as Registry
from agl_core.plugins.registry import unmet_extra as unmet_extra
from agl_core.plugins.requirements import Framework as Framework
from agl_core.plugins.requirements import offered as offered
