"""The composition root: it builds components from a configuration and plugins, and runs them.

Reading order: `parts` (building each part), `_components` (opening and closing them in order),
`run` (training, evaluation), `facade` (the user's functions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_core._builtin import load_plugins as load_plugins
    from agl_core.app._components import Blueprint as Blueprint
    from agl_core.app._components import Components as Components
    from agl_core.app._components import open_components as open_components
    from agl_core.app._components import run_alongside as run_alongside
    from agl_core.app.blocking import only_run as only_run
    from agl_core.app.facade import attach as attach
    from agl_core.app.facade import evaluate as evaluate
    from agl_core.app.facade import run_blocking as run_blocking
    from agl_core.app.facade import train as train
    from agl_core.app.names import check_sections as check_sections
    from agl_core.app.parts import Inputs as Inputs
    from agl_core.app.parts import all_of as all_of
    from agl_core.app.parts import check_apart as check_apart
    from agl_core.app.parts import displayed as displayed
    from agl_core.app.parts import engine_class as engine_class
    from agl_core.app.parts import engine_name as engine_name
    from agl_core.app.parts import gateway_server as gateway_server
    from agl_core.app.parts import make_agent as make_agent
    from agl_core.app.parts import make_algorithm as make_algorithm
    from agl_core.app.parts import make_engine as make_engine
    from agl_core.app.parts import make_filters as make_filters
    from agl_core.app.parts import make_integrations as make_integrations
    from agl_core.app.parts import make_scorer as make_scorer
    from agl_core.app.parts import make_store as make_store
    from agl_core.app.parts import remote_gateway as remote_gateway
    from agl_core.app.parts import with_store as with_store
    from agl_core.app.parts import with_weights as with_weights
    from agl_core.app.run import App as App
    from agl_core.app.run import Report as Report
    from agl_core.app.run import export_weights as export_weights
else:
    __getattr__, __dir__, __all__ = late(__name__)
