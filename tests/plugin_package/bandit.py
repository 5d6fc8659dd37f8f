"""A local plugin file: the hand-sized engine, found by its path beside this folder."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from agl_core import hookimpl

ENGINE = Path(__file__).parents[1] / "core" / "bandit_engine.py"


@hookimpl
def agl_register_engines(register):
    register("bandit", f"{__name__}:make", summary="Chooses one of three words")


@hookimpl
def agl_register_losses(register):
    register("bandit.policy_gradient", f"{__name__}:make", summary="What the engine does itself")


def make(options, setup):
    spec = spec_from_file_location("bandit_engine", ENGINE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.BanditEngine(setup)
