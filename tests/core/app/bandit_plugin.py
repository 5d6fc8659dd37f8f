"""A local plugin file: the hand-sized engine by name."""

from agl_core.plugins import hookimpl


@hookimpl
def agl_register_engines(register):
    register("bandit", "tests.core.app.bandit_plugin:make")


@hookimpl
def agl_register_losses(register):
    register("bandit.policy_gradient", "tests.core.app.bandit_plugin:make")


def make(options, setup):
    from tests.core.bandit_engine import BanditEngine

    return BanditEngine(setup)
