"""Rollout functions and `LitAgent` classes as agent programs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from agl_compat._names import renamed
from agl_compat._resources import MAIN_LLM, resources_of, rollout_of
from agl_compat._triplets import read_triplets, record_triplets
from agl_core.errors import AgentError, ConfigError
from agl_core.tracing import agent_scope, current, emit_reward
from agl_core.types import Task, finite_number

AgentProgram = Callable[[Task], Any]
_T = TypeVar("_T")
_FUNCTION: Final = "a plain function run_agent(task), with agl.emit_reward or a reward function"
_METHODS: Final = {
    True: ("training_rollout_async", "training_rollout", "rollout_async", "rollout"),
    False: ("validation_rollout_async", "validation_rollout", "rollout_async", "rollout"),
}
"""Methods of an agent for training and for evaluation; the first that it defines is called."""


class LitAgent(Generic[_T]):
    """Base class of agents whose methods run a task.

    A subclass defines ``rollout`` or ``rollout_async``, or ``training_rollout`` and
    ``validation_rollout`` and their async forms. Arguments are given by name: the task first, then
    any of ``resources``, ``rollout``, ``rollout_id``, ``llm`` and the names of resources.
    """

    def __init__(self, *, trained_agents: str | None = None) -> None:
        """Set which agents are trained, as ``agent_match`` does."""
        self.trained_agents = trained_agents


class RolloutFunction:
    """A function that runs one task; `rollout` and its variants make it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Wrap a plain or ``async`` function."""
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)


def rollout(function: Callable[..., Any]) -> RolloutFunction:
    """Mark a function as one that runs a task; arguments are given as in `LitAgent`."""
    renamed("@rollout", _FUNCTION)
    return RolloutFunction(function)


def llm_rollout(function: Callable[..., Any]) -> RolloutFunction:
    """Mark a function of a task and an ``llm``."""
    renamed("@llm_rollout", _FUNCTION)
    return RolloutFunction(function)


def prompt_rollout(function: Callable[..., Any]) -> RolloutFunction:
    """Mark a function of a task and a ``prompt_template``."""
    renamed("@prompt_rollout", f"{_FUNCTION}, which reads the prompt with agl.resource(name)")
    return RolloutFunction(function)


def reward(function: Callable[..., Any]) -> Callable[..., Any]:
    """Emit what a function returns as a reward of the attempt."""
    renamed("@reward", "agl.emit_reward, or a function reward(task, output, attempt)")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def later(*args: Any, **kwargs: Any) -> Any:
            value = await function(*args, **kwargs)
            emit_reward(value)
            return value

        return later

    @functools.wraps(function)
    def now(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        emit_reward(value)
        return value

    return now


def program_of(agent: Any) -> tuple[str, AgentProgram]:
    """Return the name and the agent program of a rollout function or an agent.

    Calls inside belong to an agent of that name, unless a framework or the program names another.

    Raises:
        ConfigError: `agent` is neither, or defines no rollout.
    """
    if isinstance(agent, LitAgent):
        renamed("LitAgent", _FUNCTION)
        methods = {train: _method(agent, train=train) for train in (True, False)}
        return type(agent).__name__, _program(type(agent).__name__, methods)
    function = agent.function if isinstance(agent, RolloutFunction) else agent
    if not callable(function):
        raise ConfigError(f"The agent {agent!r} cannot be called: give a function of a task")
    name = getattr(agent, "name", None) or getattr(function, "__name__", type(function).__name__)
    return name, _program(name, {True: function, False: function})


def _method(agent: LitAgent[Any], *, train: bool) -> Callable[..., Any]:
    for name in _METHODS[train]:
        if callable(method := getattr(agent, name, None)):
            return method
    raise ConfigError(
        f"{type(agent).__name__} defines none of {', '.join(_METHODS[train])}: define rollout"
    )


def _program(name: str, functions: Mapping[bool, Callable[..., Any]]) -> AgentProgram:
    """Return a program of the kind, sync or async, that the functions have."""

    def begin(task: Task) -> Any:
        context = current()
        function = functions[context.rollout.mode == "train"]
        return function(**_arguments(function, task, name))

    if any(map(_is_async, functions.values())):

        async def run_async(task: Task) -> Any:
            with agent_scope(name):
                value = begin(task)
                if isinstance(value, Awaitable):
                    value = await value
                return _taken(value, name)

        return run_async

    def run(task: Task) -> Any:
        with agent_scope(name):
            return _taken(begin(task), name)

    return run


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  an object whose call is async
    )


def _arguments(function: Callable[..., Any], task: Task, name: str) -> dict[str, Any]:
    """Return the arguments of a rollout function by name.

    Raises:
        ConfigError: it asks for something that a rollout does not have.
    """
    context = current()
    resources = resources_of(context)
    rollout = rollout_of(context)
    offered = {
        **resources,
        "resources": resources,
        "rollout": rollout,
        "rollout_id": rollout.rollout_id,
        "llm": resources[MAIN_LLM],
    }
    first, *others = inspect.signature(function).parameters.values()
    given: dict[str, Any] = {first.name: task.input}
    for parameter in others:
        if parameter.name in offered:
            given[parameter.name] = offered[parameter.name]
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise ConfigError(
                f"Rollout function {name!r} asks for {parameter.name!r}, but a rollout offers "
                f"{', '.join(sorted(offered))}: rename the argument, or give it a default"
            )
    return given


def _taken(value: Any, name: str) -> Any:
    """Record what a rollout function returned: a reward, or its own triplets.

    Raises:
        CaptureError: a triplet is not exact.
        AgentError: it is neither; the function's rewards are then unknown.
    """
    if value is None or isinstance(value, str):
        return value
    number = finite_number(value)
    if number is not None:
        emit_reward(number)
        return value
    triplets = read_triplets(value)
    if triplets is None:
        raise AgentError(
            f"Rollout function {name!r} returned {value!r:.120}: return the reward as a number, a "
            f"list of Triplet, or None after agl.emit_reward"
        )
    record_triplets(triplets)
    final = getattr(value, "final_reward", None)
    if final is not None:
        emit_reward(final)
    return [row[1] for row in triplets]
