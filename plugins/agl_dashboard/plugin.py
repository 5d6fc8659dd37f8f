"""Hooks of this package."""

from __future__ import annotations

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


@hookimpl
def agl_register_panels(register: Register) -> None:
    for name, summary in _PANELS.items():
        register(
            name, f"agl_dashboard.panels._{name}:make_panel", extra="dashboard", summary=summary
        )
