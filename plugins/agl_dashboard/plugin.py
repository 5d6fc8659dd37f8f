"""Hooks of this package."""

from __future__ import annotations

from typing import Any

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl

_PANELS = {
    "runs": "all runs below a folder, with their state and reward",
    "compare": "rewards of several runs, and two checkpoints task by task",
    "overview": "rewards, scores, losses and metrics by step",
    "rollouts": "rollouts by filter and order, page by page",
    "trace": "what happened inside a rollout",
    "tokens": "the tokens of a call, coloured by numbers, and the prefix tree of a group",
    "marks": "what people said of answers, with exports for training",
    "agents": "calls, tokens, times and rewards by agent, and who calls whom",
    "prompts": "versions of tuned prompts, with scores and differences",
    "system": "store, index, work in flight, events and configuration",
}


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "dashboard",
        "agl_dashboard._command:command",
        extra="dashboard",
        summary="show runs in a browser: rewards, rollouts, traces, agents",
    )
    register(
        "train.--dashboard",
        "agl_dashboard._alongside:make_option",
        summary="show the run in a browser while it runs",
    )


@hookimpl
def agl_config_resolved(config: Any) -> None:
    """Note which run begins, for a dashboard that shows it."""
    from agl_dashboard._alongside import shown  # noqa: PLC0415

    if dashboard := shown():
        dashboard.note(config)


@hookimpl
def agl_run_started() -> None:
    from agl_dashboard._alongside import shown  # noqa: PLC0415

    if dashboard := shown():
        dashboard.start()


@hookimpl
def agl_run_finished() -> None:
    from agl_dashboard._alongside import shown  # noqa: PLC0415

    if dashboard := shown():
        dashboard.finished = True


@hookimpl
def agl_register_panels(register: Register) -> None:
    for name, summary in _PANELS.items():
        register(
            name, f"agl_dashboard.panels._{name}:make_panel", extra="dashboard", summary=summary
        )
