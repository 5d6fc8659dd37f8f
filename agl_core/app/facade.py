"""The user's functions: ``train``, ``evaluate``, ``attach``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

from agl_core._builtin import load_plugins
from agl_core.app.blocking import only_run, run_blocking
from agl_core.app.parts import Agent, Inputs, displayed, make_integrations
from agl_core.app.run import App, Report, run_config_of
from agl_core.config import RunConfig
from agl_core.config.loader import read_anchored, resolve, with_plugins
from agl_core.config.text import parse_key, put
from agl_core.errors import AglError
from agl_core.interfaces import Observer, RewardFunction
from agl_core.plugins import PluginManager
from agl_core.serving import withheld_key
from agl_core.tracing import Attachment, users_traceback
from agl_core.tracing import attach as attach_integrations
from agl_core.types import Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """Options of ``agl train script.py``, which apply to every run that the script starts."""

    overrides: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    observers: tuple[Observer, ...] = ()
    stream: TextIO | None = None
    """Where all runs show their progress; None: on standard error, if ``progress`` is true."""


_PLAIN = Invocation()
_invocation: ContextVar[Invocation] = ContextVar("agl_invocation", default=_PLAIN)


def current_invocation() -> Invocation:
    """Return the current invocation; an empty one outside the command line."""
    return _invocation.get()


@contextmanager
def invoked(invocation: Invocation) -> Generator[None, None, None]:
    """Apply these options to runs started inside."""
    token = _invocation.set(invocation)
    try:
        yield
    finally:
        _invocation.reset(token)


T = TypeVar("T")

Rewards = RewardFunction | Callable[..., Any] | Mapping[str, Callable[..., Any]]


def train(  # noqa: PLR0913 - the one call a user writes
    agent: Agent | None = None,
    tasks: Any = None,
    *,
    agents: Sequence[str] = (),
    reward: Rewards | None = None,
    model: str | None = None,
    algorithm: str | None = None,
    phases: Sequence[Mapping[str, Any]] | None = None,
    val_tasks: Any = None,
    config: RunConfig | Mapping[str, Any] | str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    observers: Sequence[Observer] = (),
    progress: bool = True,
) -> Report:
    """Run the agent program on the tasks and train the named agents with its model calls.

    Args:
        agent: Your agent program: a plain or ``async`` function of a `Task`.
        tasks: Rows, Tasks, a ``.jsonl`` path, or a callable that returns rows.
        agents: Exact names or globs of the agents to train.
        reward: ``reward(task, output, attempt)``, which returns a number or `Score`, or one per channel;
            or a mapping of channel to such a function. Optional if the agent calls `emit_reward`.
        model: Directory or hub name of the weights, or the URL of an endpoint that only serves.
        algorithm: ``grpo``, ``rloo``, ``reinforce`` or a plugin's algorithm.
        phases: Parts of the run in order, each with an algorithm and ``steps``, or with an
            optimiser of prompts and ``rollouts``; see `PhaseConfig`.
        val_tasks: Held-out tasks, evaluated before and after training (and between steps, see
            `TrainConfig`).
        config: All other settings, as a file, a mapping or a `RunConfig`; arguments override it.
        overrides: Dotted keys to values, such as ``{"train.steps": 30}``; they override all else.
        observers: Called at every step and evaluation.
        progress: Show progress on standard error (in a notebook on standard output), in place on a
            terminal and line by line in pipes and files. ``agl train script.py`` always shows it.

    Returns:
        The report: scores, losses by cause, and the directory of the weights.

    Raises:
        ConfigError: a name, key or value is wrong; the message names the fix.
        CaptureError: the records of the attempts are not exact.
        AglError: other errors, see `agl_core.errors`.
    """
    resolved = _config(
        config,
        {
            "agents": list(agents) or None,
            "algorithm.name": algorithm,
            "phases": None if phases is None else [dict(phase) for phase in phases],
            **_model(model),
        },
        overrides or {},
    )
    inputs = Inputs(agent=agent, tasks=tasks, val_tasks=val_tasks, reward=reward)
    return _ended(resolved, inputs, App.train, observers=observers, progress=progress)


def evaluate(  # noqa: PLR0913 - the one call a user writes
    agent: Agent | None = None,
    tasks: Any = None,
    *,
    agents: Sequence[str] = (),
    reward: Rewards | None = None,
    model: str | None = None,
    config: RunConfig | Mapping[str, Any] | str | Path | None = None,
    checkpoint: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    observers: Sequence[Observer] = (),
    progress: bool = True,
) -> Evaluation:
    """Score the agent program on the tasks without training.

    Args:
        agent: Your agent program.
        tasks: The tasks to score it on.
        agents: As for `train`; the trained weights serve these agents.
        reward: As for `train`.
        model: As for `train`.
        config: As for `train`.
        checkpoint: Checkpoint directory of a run, such as ``report.best``, or the directory of
            ``report.export``. Without `config`, the configuration of that run is used.
        overrides: As for `train`.
        observers: Called at the evaluation.
        progress: As for `train`.
    """
    if config is None and checkpoint is not None:
        config = run_config_of(Path(checkpoint))
    resolved = _config(config, {"agents": list(agents) or None, **_model(model)}, overrides or {})
    inputs = Inputs(agent=agent, val_tasks=tasks, reward=reward)
    begin = partial(App.evaluate, checkpoint=checkpoint)
    return _ended(resolved, inputs, begin, observers=observers, progress=progress)


def attach() -> Attachment:
    """Attach to this process with every installed integration; see `agl_core.tracing.attach`."""
    return attach_integrations(integrations=make_integrations(load_plugins()))


def _ended(
    config: RunConfig,
    inputs: Inputs,
    begin: Callable[[App], Coroutine[Any, Any, T]],
    *,
    observers: Sequence[Observer],
    progress: bool,
) -> T:
    """Run to the end as the only run of the process, with its observers and displays.

    The traceback of an error in user code begins at the user's first frame.
    """
    with only_run(config.name) as whole, withheld_key():
        plugins = load_plugins(config.plugins)
        with _watching(observers, plugins, shown=progress) as watching:
            try:
                app = App(config, inputs, observers=watching, plugins=plugins)
                return run_blocking(whole(begin(app)))
            except AglError:
                raise
            except Exception as error:
                frames = users_traceback(error.__traceback__)
                if frames is None:
                    raise
                raise error.with_traceback(frames)  # noqa: B904 - it is the same exception


@contextmanager
def _watching(
    given: Sequence[Observer], plugins: PluginManager, *, shown: bool
) -> Generator[tuple[Observer, ...], None, None]:
    """Yield a run's observers, with those that display its progress."""
    invocation = current_invocation()
    # A process without a console has no standard error.
    stream = invocation.stream or (getattr(sys, "stderr", None) if shown else None)
    with displayed(stream, plugins) as displays:
        yield (*given, *displays, *invocation.observers)


def _model(model: str | None) -> dict[str, Any]:
    """Return the settings for a model; a URL selects the engine ``http``, which only serves."""
    if model is not None and model.startswith(("http://", "https://")):
        return {"engine.name": "http", "engine.base_url": model, "model": "auto"}
    return {"model": model}


def _config(
    base: RunConfig | Mapping[str, Any] | str | Path | None,
    arguments: Mapping[str, Any],
    overrides: Mapping[str, Any],
) -> RunConfig:
    data = _plain(base)
    given = {key: value for key, value in arguments.items() if value is not None}
    for key, value in {**given, **overrides}.items():
        put(data, parse_key(key), value)
    invocation = current_invocation()
    return with_plugins(resolve(data, invocation.overrides), invocation.plugins)


def _plain(base: RunConfig | Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    if base is None:
        return {}
    if isinstance(base, RunConfig):
        return base.model_dump(mode="json", exclude_unset=True)
    if isinstance(base, Mapping):
        return deepcopy(dict(base))
    return read_anchored(base)
