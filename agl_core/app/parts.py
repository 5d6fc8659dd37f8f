"""Building each part of a run from the configuration and its plugins."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TextIO

import msgspec

from agl_core.config import EngineOptions, RewardConfig, RunConfig, StoreConfig, TasksConfig
from agl_core.config.loader import check_options, validate
from agl_core.config.policies import algorithm_phases, needs_tuner
from agl_core.config.references import load_object
from agl_core.config.rows import load_tasks
from agl_core.errors import ConfigError, MissingExtraError, pip_line
from agl_core.gateway import GatewayOptions, GatewayServer
from agl_core.interfaces import (
    Algorithm,
    AlgorithmSetup,
    Engine,
    Filter,
    Gateway,
    GatewayUse,
    Integration,
    KeepsFiles,
    Observer,
    RewardFunction,
    RunObserver,
    Store,
    StoreLifecycle,
    TakesFilters,
    TrackedRun,
)
from agl_core.plugins import PluginManager, Registration, Registry
from agl_core.plugins.registry import unmet_extra
from agl_core.runner import NamedReward, Scorer
from agl_core.store import described, layered, store_of, store_options, store_section
from agl_core.types import Policy, Task

_log = logging.getLogger(__name__)

Agent = Callable[[Task], Any]

_ENGINE: Final = "torch"
"""Default engine, if neither the configuration nor the algorithm names one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The user's objects; a field that is None is taken from the configuration."""

    agent: Agent | None = None
    tasks: Any = None
    val_tasks: Any = None
    reward: RewardFunction | Mapping[str, RewardFunction] | None = None
    """One function, or one per channel."""


def make_agent(config: RunConfig, given: Agent | None) -> Agent:
    """Return the agent program.

    Raises:
        ConfigError: it is missing or not callable.
    """
    agent = given if given is not None or config.agent is None else load_object(config.agent)
    if agent is None:
        raise ConfigError(
            "There is no agent to run: set agent = 'file.py:function' in the configuration, or "
            "pass the function"
        )
    if not callable(agent):
        raise ConfigError(f"The agent {agent!r} cannot be called: give a function of a Task")
    return agent


def check_apart(config: RunConfig, plugins: PluginManager) -> str:
    """Check that other processes can reach the store and the gateway; return the gateway's URL.

    Raises:
        ConfigError: they cannot.
    """
    name = config.store.name
    if not described(store_options(config.store, plugins)).shared:
        raise ConfigError(
            f"store.name = {name!r} is open in one process only, but runners are other processes: "
            f"use a store that processes share, such as {StoreConfig().name!r} on one machine, or "
            f"serve one with agl store serve"
        )
    if config.gateway.url is None:
        raise ConfigError(
            "gateway.url is not set, but runners in other processes need a gateway that they and "
            "the trainer reach: start agl gateway, and give its address to all of them"
        )
    return config.gateway.url


def make_scorer(
    config: RunConfig,
    plugins: PluginManager,
    given: RewardFunction | Mapping[str, RewardFunction] | None,
) -> Scorer:
    """Return the scorer of the given rewards, or of those that the configuration names."""
    if given is None:
        rewards = build_rewards(config.rewards, plugins.registry("rewards"))
    elif isinstance(given, Mapping):
        rewards = [
            NamedReward(name=channel, function=function, channel=channel)
            for channel, function in given.items()
        ]
    else:
        name = getattr(given, "__name__", type(given).__name__)
        rewards = [NamedReward(name=name, function=given)]
    for reward in rewards:
        if isinstance(reward.function, KeepsFiles):
            reward.function.keep_in(Path(config.directory) / config.name)
    return Scorer(rewards)


def build_rewards(sections: Sequence[RewardConfig], registry: Registry) -> list[NamedReward]:
    """Make the rewards that a configuration names.

    A name with a colon is a reference to a user's function, other names are registered rewards.
    Rewards with the same name are distinguished by their channel, then by their number.

    Raises:
        ConfigError: a name, an option or a reference is wrong.
        PluginError: a reward's plugin is broken or lacks its framework.
    """
    named: list[NamedReward] = []
    for index, section in enumerate(sections):
        name = section.name.rpartition(":")[2]
        taken = {reward.name for reward in named}
        for candidate in (name, f"{name}[{section.channel}]", f"{name}[{index}]"):
            if candidate not in taken:
                name = candidate
                break
        function = _reward_function(section, registry, f"rewards.{index}")
        named.append(NamedReward(name=name, function=function, channel=section.channel))
    return named


def _reward_function(section: RewardConfig, registry: Registry, where: str) -> RewardFunction:
    if ":" in section.name:
        check_options(section, None, where=where)
        return load_object(section.name)
    model = registry.options_model(section.name)
    if model is None:
        try:
            return registry.create(section.name, **section.options)
        except TypeError as error:
            raise ConfigError(
                f"Configuration: {where} ({section.name}) does not take "
                f"{sorted(section.options)}: {error}"
            ) from error
    options = check_options(section, model, where=where)
    given = options.model_dump(by_alias=True, exclude_unset=True)
    return registry.create(section.name, **given)


def make_tasks(
    given: Any, config: TasksConfig, kind: Literal["train", "val"], plugins: PluginManager
) -> list[Task]:
    """Return the given tasks, or those that the configuration names.

    A text without dot and colon names a set of tasks that a plugin registers.

    Raises:
        ConfigError: there are no tasks, or they cannot be loaded.
    """
    source = given if given is not None else getattr(config, kind)
    if source is None:
        raise ConfigError(
            f"There are no {kind} tasks: set tasks.{kind} in the configuration, or pass them"
        )
    readers = plugins.registry("tasks")
    if isinstance(source, str) and not {".", ":"} & {*source}:
        source = readers.create(source, kind)
    return load_tasks(source, readers, columns=config.columns.model_dump(exclude_none=True))


def with_weights(policies: Sequence[Policy], plugins: PluginManager) -> list[Policy]:
    """Return the policies with the directories of weights that plugins registered by name.

    A directory of that name in the working directory has precedence.

    Raises:
        ConfigError: registered weights cannot be located.
        MissingExtraError: a library that they need is not installed.
    """
    models = plugins.registry("models")
    found: dict[str, str] = {}
    for policy in policies:
        name = policy.model
        if name in models and not policy.base_url and not Path(name).is_dir() and name not in found:
            found[name] = str(models.create(name, _say))
    return [
        msgspec.structs.replace(policy, model=found.get(policy.model, policy.model))
        for policy in policies
    ]


def _say(text: str) -> None:
    """Log as a warning, so that it is shown by default: fetching takes minutes."""
    _log.warning("%s", text)


def make_algorithm(
    config: RunConfig, plugins: PluginManager, *, where: str = "algorithm"
) -> tuple[Algorithm, AlgorithmSetup]:
    """Make the algorithm of a phase's configuration, and its setup for an engine."""
    section, registry = config.algorithm, plugins.registry("algorithms")
    options = check_options(section, registry.options_model(section.name), where=where)
    algorithm: Algorithm = registry.create(section.name, options)
    if isinstance(algorithm, TakesFilters):
        algorithm.filter_by(make_filters(config, plugins))
    setup = AlgorithmSetup(
        name=section.name,
        loss_factory=_loss_factory(config, algorithm, plugins),
        seed=config.seed,
        lr=section.lr,
        weight_decay=section.weight_decay,
        max_grad_norm=section.max_grad_norm,
        epochs=section.epochs,
        minibatches=section.minibatches,
        kl_weight=section.kl_weight,
        token_numbers=config.train.keep_tokens > 0,
    )
    return algorithm, setup


def make_engine(
    config: RunConfig,
    plugins: PluginManager,
    setup: AlgorithmSetup | None,
    *,
    policies: Sequence[Policy] = (),
) -> Engine:
    """Make the configured engine, after checking the models of the policies.

    Raises:
        ConfigError: an option or a model is wrong, or the engine lacks the algorithm's loss.
    """
    name, registry = engine_name(config, plugins), plugins.registry("engines")
    options = check_options(config.engine, registry.options_model(name), where="engine")
    if isinstance(options, EngineOptions):
        named = plugins.registry("models")
        for policy in policies:
            if policy.model not in named and not policy.base_url:
                options.check_model(policy.model)
    engine: Engine = registry.create(name, options, setup)
    return engine


def engine_class(name: str, plugins: PluginManager) -> type[Engine]:
    """Return the class of a registered engine, for its static methods.

    If a function is registered, return `Engine`, which has only the defaults.

    Raises:
        ConfigError: the engine is not registered.
        PluginError: it cannot be imported.
    """
    known = plugins.registry("engines").resolve(name)
    return known if inspect.isclass(known) and issubclass(known, Engine) else Engine


def engine_name(config: RunConfig, plugins: PluginManager) -> str:
    """Return the configured engine, or else the attribute `engine` of the first algorithm with it."""
    if config.engine.name is not None:
        return config.engine.name
    named = (getattr(each, "engine", None) for each in _algorithms(config, plugins))
    return next(filter(None, named), _ENGINE)


def runs_agents(config: RunConfig, plugins: PluginManager) -> bool:
    """Return whether training needs agent and tasks: a `Demonstrator` needs neither."""
    return needs_tuner(config) or not all(
        hasattr(algorithm, "demonstrate") for algorithm in _algorithms(config, plugins)
    )


def _algorithms(config: RunConfig, plugins: PluginManager) -> Iterator[Any]:
    """Yield the classes of the run's algorithms."""
    for phase in algorithm_phases(config).values():
        yield plugins.registry("algorithms").resolve(phase.algorithm.name)


def _loss_factory(
    config: RunConfig, algorithm: Algorithm, plugins: PluginManager
) -> Callable[[], Any]:
    """Return a function that makes the algorithm's loss; only engines that train call it."""
    losses = plugins.registry("losses")
    engine, user = engine_name(config, plugins), config.algorithm.name
    name = f"{engine}.{algorithm.loss}"

    def make() -> Any:
        if name not in losses:
            raise ConfigError(
                f"Engine {engine!r} has no loss {algorithm.loss!r}, which algorithm {user!r} "
                f"needs; registered losses: {losses.names()}"
            )
        options = dict(algorithm.loss_options)
        model = losses.options_model(name)
        if model is not None:
            return losses.create(name, validate(model, options, where=f"loss {name}"))
        if options:
            raise ConfigError(
                f"Loss {name!r} takes no options, but algorithm {user!r} gives it "
                f"{sorted(options)}: register the loss with config=, or choose another algorithm"
            )
        return losses.create(name)

    return make


def make_store(config: RunConfig, plugins: PluginManager, directory: Path) -> StoreLifecycle:
    """Make the configured store in its layers, without opening it."""
    options = store_options(config.store, plugins)
    store = plugins.registry("stores").create(config.store.name, options, directory)
    return layered(store, config.sections, plugins)


def with_store(config: RunConfig, plugins: PluginManager) -> RunConfig:
    """Return the configuration with the validated options of its store.

    Raises:
        ConfigError: the store is unknown, or an option is wrong.
    """
    section = store_of(config, plugins)
    options = store_options(section, plugins)
    return config.model_copy(update={"store": store_section(section.name, options)})


def with_store_apart(config: RunConfig, plugins: PluginManager) -> RunConfig:
    """Return the configuration with a separate store; see `StoreOptions.apart`."""
    name = config.store.name
    options = described(store_options(config.store, plugins)).apart()
    store = store_section(name, options) if options is not None else StoreConfig()
    return config.model_copy(update={"store": store})


def make_integrations(plugins: PluginManager) -> list[Integration]:
    """Make the required integrations, then every other one whose framework is installed.

    A framework in a version that the extra does not allow is attached with a warning.

    Raises:
        ConfigError: no required integration is registered.
        PluginError: a required one cannot be made.
    """
    registry = plugins.registry("integrations")
    required = [entry.name for entry in registry.registrations() if entry.required]
    if not required:
        absent = ("disabled", "broken")
        found = [f"{e.name!r} ({e.detail})" for e in plugins.plugins() if e.state in absent]
        raise ConfigError(
            f"No required integration is registered: model requests over other HTTP libraries than "
            f"httpx would be neither refused nor counted. Plugins that are not loaded: "
            f"{', '.join(found) or 'none'}. Load the one that registers it, or reinstall agl-core"
        )
    made: list[Integration] = [registry.create(name) for name in required]
    for name in registry.names():
        if name in required:
            continue
        try:
            made.append(registry.create(name))
        except MissingExtraError:
            continue
        _warn_if_untested(registry.get(name))
    return made


def make_tracking(
    config: RunConfig, plugins: PluginManager, describe: Callable[[], TrackedRun]
) -> list[RunObserver]:
    """Make the observers whose sections the configuration has, without starting them.

    Raises:
        ConfigError: a name or an option is wrong, or no plugin brings the observer.
        MissingExtraError: a package of a tracker or an event bus is not installed.
    """
    observers = plugins.registry("observers")
    own = [name for name in config.sections if name in observers]  # others are of layers
    sections = [*(["trackers"] if config.trackers else []), *own]
    made = [observers.create(each, config, plugins, describe) for each in sections]
    return sorted(made, key=lambda each: not getattr(each, "brings_checkpoints", False))


def make_filters(config: RunConfig, plugins: PluginManager) -> list[Filter]:
    """Make the filters of training whose sections the configuration has.

    Raises:
        ConfigError: an option is wrong.
    """
    registry, sections = plugins.registry("filters"), config.sections
    return [registry.create(name, sections[name]) for name in registry.names() if name in sections]


def gateway_server(
    store: Store, options: GatewayOptions, plugins: PluginManager, config: RunConfig | None = None
) -> GatewayServer:
    """Return a gateway with what plugins register for it, without starting it.

    Args:
        store: Receives the call records.
        options: Address and behaviour.
        plugins: The loaded plugins.
        config: A configuration whose sections choose the checks of model requests.
    """
    checks = plugins.registry("admissions")
    return GatewayServer(
        store,
        options,
        routes=all_of(plugins.registry("routes")),
        dialects=all_of(plugins.registry("dialects")),
        rewriters=[*all_of(plugins.registry("rewriters")).values()],
        admissions=[checks.create(n, config) for n in config.sections if n in checks]
        if config
        else (),
    )


def remote_gateway(url: str, plugins: PluginManager, use: GatewayUse | None = None) -> Gateway:
    """Return the client of a gateway in another process, without connecting.

    Raises:
        ConfigError: the address has no scheme, or no plugin registers a gateway for it.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigError(f"gateway.url = {url!r} is not an address: write http://HOST:PORT")
    return plugins.registry("gateways").create(scheme.lower(), url, use or GatewayUse())


@contextmanager
def displayed(
    stream: TextIO | None, plugins: PluginManager
) -> Generator[tuple[Observer, ...], None, None]:
    """Yield an observer of every registered display; without a stream, of those that need none."""
    factories = all_of(plugins.registry("displays")).values()
    if stream and not factories:
        _log.debug("The run's progress is not shown: no plugin registers a display")
    with ExitStack() as stack:
        used = [each for each in factories if stream or hasattr(each, "always")]
        yield tuple(stack.enter_context(factory(stream)) for factory in used)


def all_of(registry: Registry) -> dict[str, Any]:
    """Return everything that is registered, except what needs an extra that is not installed."""
    found: dict[str, Any] = {}
    for name in registry.names():
        with suppress(MissingExtraError):
            found[name] = registry.resolve(name)
    return found


def _warn_if_untested(registration: Registration) -> None:
    lacking = unmet_extra(registration)
    if lacking:
        _log.warning(
            "Integration %r is tested with %s, which is not what is installed: what it records may "
            "be wrong. Run %s",
            registration.name,
            ", ".join(lacking),
            pip_line(registration.extra or ""),
        )
