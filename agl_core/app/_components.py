"""Opening and closing the components of a run in order, and the lease on its store."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from ssl import SSLContext
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from agl_core import waits
from agl_core.app.parts import (
    Agent,
    all_of,
    gateway_server,
    make_algorithm,
    make_engine,
    make_filters,
    make_integrations,
    make_store,
    remote_gateway,
    with_weights,
)
from agl_core.config import EngineConfig, RunConfig
from agl_core.config.loader import save_config
from agl_core.config.policies import algorithm_phases, resolve_policies, trained_agents
from agl_core.errors import ConfigError, LeadHeldError, StoreError, TrainingError
from agl_core.files import make_private_directory
from agl_core.gateway import GatewayOptions
from agl_core.interfaces import (
    AdaptedAttempt,
    Adapter,
    AttemptRecord,
    Backend,
    Diagnose,
    Engine,
    Filter,
    Gateway,
    GatewayUse,
    Observer,
    RunObserver,
    StoreLifecycle,
    show_stage,
)
from agl_core.plugins import PluginManager
from agl_core.runner import Runner, RunnerOptions, Scorer
from agl_core.serving import given_key, tls_context
from agl_core.tracing import attach
from agl_core.training.rollouts import RolloutSource
from agl_core.training.steps import AlgorithmPhase, Events, reconfigures
from agl_core.types import Attempt, Losses, Policy, Rollout, Span
from agl_core.types.run import sum_breaks

T = TypeVar("T")

_log = logging.getLogger(__name__)

_RENEWALS_PER_LEASE: Final = 3
_LOOKS_PER_LEASE: Final = 30
_PROCESSES: Final = Path("/proc/self/ns/pid")
"""Linux: the namespace in which process ids are valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """The inputs for building components."""

    config: RunConfig
    plugins: PluginManager
    directory: Path
    agent: Agent | None
    """None if runners in other processes run it."""
    scorer: Scorer | None
    """None if runners in other processes run it."""
    observers: Sequence[Observer] = ()
    tracking: Sequence[RunObserver] = ()
    """None without training."""
    exported: Path | None = None
    """Directory of exported weights that replace the policies' models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The open components of a run."""

    store: StoreLifecycle
    gateway: Gateway
    engine: Engine
    runner: Runner | None
    """None if other processes run the attempts."""
    adapter: Adapter
    source: RolloutSource
    events: Events
    policies: list[Policy]
    phases: dict[int, AlgorithmPhase]
    """The phases that train weights, by number; none for evaluation."""
    lead: asyncio.Task[None] | None = None
    """A task that ends if the store's lease is lost; None for evaluation."""


@asynccontextmanager
async def open_components(
    plan: Blueprint, *, training: bool, probe: bool = True
) -> AsyncGenerator[Components]:
    """Open store, engine, gateway and runner and attach to the process.

    Args:
        plan: The inputs.
        training: False for evaluation, which needs no trainable policy.
        probe: Check that the backend of every trained policy returns token ids.

    Raises:
        ConfigError: a name, path or option is wrong.
        MissingTokensError: a trained policy's backend returns no token ids.
    """
    config, section = plan.config, plan.config.gateway
    tls = tls_context(section.tls_cert, section.tls_key)
    policies = _policies(plan, training=training)
    phases = _phases(config, plan.plugins) if training else {}
    engine = await _engine(plan, phases, policies)
    if engine.trains:  # for other engines, model names belong to the endpoint
        policies = await asyncio.to_thread(with_weights, policies, plan.plugins)
    else:
        policies = [msgspec.structs.replace(policy, trainable=False) for policy in policies]
    adapter = _adapter(plan, policies, training=training)
    store = make_store(config, plan.plugins, plan.directory)  # before anything is written
    make_private_directory(plan.directory)
    async with AsyncExitStack() as stack:
        await store.open()
        stack.push_async_callback(store.close)
        leads = leading(store, lease_s=config.rollout.lease_s)
        lead = await stack.enter_async_context(leads) if training else None
        save_config(config, plan.directory)  # after the lease: a refused trainer must not write it
        observers, lossy = [*plan.observers], list[Losses]()
        for tracking in plan.tracking:  # they start before weights are loaded, to fail early
            await stack.enter_async_context(tracking.following())
            observers.append(tracking)
            lossy.append(tracking.losses)
        stack.push_async_callback(engine.stop)
        show_stage(observers, "loading weights")
        started = await _start(stack, plan, engine, policies)
        show_stage(observers, "starting the gateway")
        gateway = await _gateway(stack, plan, store, engine, tls)
        for policy, backend in started:
            await gateway.route(policy, backend)
            if policy.trainable and probe:
                await gateway.probe(policy.name)
        source = RolloutSource(store, config)
        lossy.append(source.losses)
        runner = None
        if plan.agent is not None:
            runner = _runner(plan, plan.agent, store, gateway)
            lossy.append(runner.losses)
            stack.callback(attach(integrations=make_integrations(plan.plugins)).detach)
        yield Components(
            store=store,
            gateway=gateway,
            engine=engine,
            runner=runner,
            adapter=adapter,
            source=source,
            events=Events(
                plan.plugins.observe, observers, take_losses=_Counted(gateway, lossy).take
            ),
            policies=[policy for policy, _ in started],
            phases=phases,
            lead=lead,
        )


def _phases(config: RunConfig, plugins: PluginManager) -> dict[int, AlgorithmPhase]:
    """Make the algorithms of a run by the number of their phase.

    Raises:
        ConfigError: a name or an option is wrong.
    """
    made: dict[int, AlgorithmPhase] = {}
    for number, phase in algorithm_phases(config).items():
        where = f"phases.{number}" if config.phases else "algorithm"
        algorithm, setup = make_algorithm(phase, plugins, where=where)
        made[number] = AlgorithmPhase(config=phase, algorithm=algorithm, setup=setup)
    return made


async def _engine(
    plan: Blueprint, phases: Mapping[int, AlgorithmPhase], policies: Sequence[Policy]
) -> Engine:
    """Make the engine as described at `Engine.configure`.

    Raises:
        ConfigError: it cannot train with the settings of all phases.
    """
    setup = None
    if phases:
        most = max(phase.setup.kl_weight for phase in phases.values())
        setup = replace(phases[min(phases)].setup, kl_weight=most)
    engine = make_engine(plan.config, plan.plugins, setup, policies=policies)
    if setup is not None and reconfigures(phases):
        if type(engine).configure is Engine.configure:
            await engine.configure(setup)  # refuses
        for phase in phases.values():
            engine.check_setup(phase.setup)
    return engine


async def _start(
    stack: AsyncExitStack, plan: Blueprint, engine: Engine, policies: Sequence[Policy]
) -> list[tuple[Policy, Backend]]:
    """Start the engine and the endpoints of policies with ``base_url``; return all backends."""
    await engine.start([policy for policy in policies if not policy.base_url])
    started: list[tuple[Policy, Backend]] = []
    for policy in policies:
        serving = engine
        if policy.base_url:
            key = plan.config.policies[policy.name].api_key_env
            options = {"name": "http", "base_url": policy.base_url, "api_key_env": key}
            config = plan.config.model_copy(update={"engine": EngineConfig(**options)})
            serving = make_engine(config, plan.plugins, None)
            stack.push_async_callback(serving.stop)
            await serving.start([policy])
        started.append((_described(policy, serving), serving.backend(policy.name)))
    return started


def _policies(plan: Blueprint, *, training: bool) -> list[Policy]:
    """Return the policies of the configuration, with exported weights if the plan has some.

    Raises:
        ConfigError: the configuration is wrong, or no policy has exported weights.
    """
    policies = resolve_policies(plan.config, training=training)
    exported = plan.exported
    if exported is None:
        return policies
    paths = {each.name: exported / each.name for each in policies}
    found = {name: str(path) for name, path in paths.items() if path.is_dir()}
    if not found:
        raise ConfigError(
            f"{exported} is neither a checkpoint nor an export with weights of the policies "
            f"{[policy.name for policy in policies]}: name a directory such as report.best, or what "
            f"report.export returned"
        )
    replace_model = msgspec.structs.replace
    return [replace_model(each, model=found.get(each.name, each.model)) for each in policies]


def _adapter(plan: Blueprint, policies: Sequence[Policy], *, training: bool) -> Adapter:
    adapter: Adapter = plan.plugins.registry("adapters").create(
        plan.config.capture.adapter,
        trained_agents(plan.config, list(policies)) if training else [],
        policies=policies,
        channel_weights=plan.config.channel_weights,
    )
    return _Diagnosing(adapter, plan.plugins, make_filters(plan.config, plan.plugins))


@dataclass(frozen=True)
class _Diagnosing:
    """An adapter with filters, and diagnoses of plugins, which the first attempt imports."""

    adapter: Adapter
    plugins: PluginManager
    filters: Sequence[Filter]

    @cached_property
    def diagnoses(self) -> list[Diagnose]:
        return [*all_of(self.plugins.registry("diagnoses")).values()]

    def adapt(self, record: AttemptRecord) -> AdaptedAttempt:
        adapted = self.adapter.adapt(record)
        found = [diagnose(record, adapted) for diagnose in self.diagnoses]
        adapted = replace(adapted, breaks=sum_breaks([adapted.breaks, *found]))
        for each in self.filters:
            adapted = each.adapted(record, adapted)
        return adapted

    def check(self, seen: Collection[str]) -> None:
        self.adapter.check(seen)


def _described(policy: Policy, engine: Engine) -> Policy:
    """Return the policy with its engine's facts about token ids and chat template."""
    name = policy.name
    return msgspec.structs.replace(
        policy,
        image_token=engine.image_token(name),
        shows_tools=engine.shows_tools(name) is not False,
        vocab_size=engine.vocab_size(name),
    )


async def run_alongside(
    runner: Runner | None, work: Coroutine[Any, Any, T], lead: asyncio.Task[None] | None = None
) -> T:
    """Run `work` together with the runner and the lease; the first failure ends all of them."""
    stop = asyncio.Event()
    serving: set[asyncio.Task[None]] = set()
    if runner is not None:
        serving.add(asyncio.create_task(runner.run(stop), name="agl-runner"))
    working = asyncio.create_task(work, name="agl-work")
    watched = serving if lead is None else {*serving, lead}
    try:
        await asyncio.wait({*watched, working}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            _ended_early(watched)
        outcome = await working
    except BaseException:
        # The runner stores the attempts in flight as cancelled.
        for task in (working, *serving):
            task.cancel()
        await asyncio.gather(working, *serving, return_exceptions=True)
        raise
    stop.set()
    await asyncio.gather(*serving)
    return outcome


def _ended_early(watched: set[asyncio.Task[None]]) -> NoReturn:
    for task in watched:
        if task.done():
            task.result()
    raise TrainingError("The runner stopped although the run had not ended")


@dataclass(slots=True)
class _Counted:
    """Returns the losses of several components since the last call of `take`."""

    gateway: Gateway
    sources: Sequence[Losses]
    taken: dict[str, int] = field(default_factory=dict[str, int])

    async def take(self) -> Losses:
        total = await self.gateway.lost()
        for source in self.sources:
            total.merge(source)
        fresh = Losses()
        for cause, count in total.counts.items():
            fresh.add(cause, count - self.taken.get(cause, 0))
        self.taken = dict(total.counts)
        return fresh


async def _gateway(
    stack: AsyncExitStack,
    plan: Blueprint,
    store: StoreLifecycle,
    engine: Engine,
    tls: SSLContext | None,
) -> Gateway:
    section = plan.config.gateway
    gateway: Gateway
    if section.url is not None:
        use = GatewayUse(deterministic=engine.trains, backend_host=section.backend_host, tls=tls)
        gateway = remote_gateway(section.url, plan.plugins, use)
    else:
        options = GatewayOptions(
            host=section.host,
            port=section.port,
            tls=tls,
            deterministic=engine.trains,
            operator_key=given_key(),
        )
        gateway = gateway_server(store, options, plan.plugins, plan.config)
    stack.push_async_callback(gateway.stop)
    await gateway.start()
    return gateway


def _runner(plan: Blueprint, agent: Agent, store: StoreLifecycle, gateway: Gateway) -> Runner:
    observe = plan.plugins.observe

    def started(rollout: Rollout, attempt: Attempt) -> None:
        observe("agl_rollout_started", rollout=rollout, attempt=attempt)

    def finished(rollout: Rollout, attempt: Attempt, spans: Sequence[Span]) -> None:
        observe("agl_rollout_finished", rollout=rollout, attempt=attempt, spans=spans)

    options = RunnerOptions(
        concurrency=plan.config.rollout.concurrency, on_started=started, on_finished=finished
    )
    return Runner(store, gateway, agent, plan.scorer, options)


@asynccontextmanager
async def leading(
    store: StoreLifecycle, *, lease_s: float
) -> AsyncGenerator[asyncio.Task[None], None]:
    """Hold the store's lease inside; yield a task that ends only if the lease is lost.

    The lease of a process that is known to be dead is taken immediately. Otherwise this waits: a
    running trainer renews its lease, the lease of a dead one expires.

    Args:
        store: Open until this context has ended.
        lease_s: Duration of the lease; a dead trainer blocks others for that long.

    Raises:
        LeadHeldError: another trainer has the lease and renews it.
    """
    instance = new_instance()
    await _take(store, instance, lease_s)
    renewing = asyncio.create_task(_renew(store, instance, lease_s), name="agl-lead")
    try:
        yield renewing
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        try:
            await asyncio.wait_for(store.lead(instance, lease_s=0), waits.LEAD_S)
        except (TimeoutError, StoreError):
            _log.warning("The store's lead could not be given back; it lapses", exc_info=True)


def new_instance() -> str:
    """Return ``<host>-<process id>-<random>``; the last part begins with `_processes`."""
    return f"{socket.gethostname()}-{os.getpid()}-{_processes()}{secrets.token_hex(4)}"


async def _take(store: StoreLifecycle, instance: str, lease_s: float) -> None:
    first: LeadHeldError | None = None
    while True:
        try:
            await store.lead(instance, lease_s=lease_s)
        except LeadHeldError as error:
            if first is None:
                first = error
                if _is_dead(error.holder):
                    _log.warning("Trainer %s is dead: taking its place", error.holder)
                    await store.lead(error.holder, lease_s=0)
                    continue
                _log.warning(
                    "Trainer %s leads the store: waiting to see whether it is alive", error.holder
                )
            if error.holder != first.holder or error.until > first.until:
                raise
        else:
            return
        await asyncio.sleep(lease_s / _LOOKS_PER_LEASE)


async def _renew(store: StoreLifecycle, instance: str, lease_s: float) -> None:
    while True:
        await asyncio.sleep(lease_s / _RENEWALS_PER_LEASE)
        try:
            await store.lead(instance, lease_s=lease_s)
        except LeadHeldError:
            raise
        except StoreError:
            # If the store stays away, the run's next request to it raises.
            _log.warning("The store took no renewal of the lead", exc_info=True)


def _is_dead(instance: str) -> bool:
    """Return whether the process of an instance is known to have ended.

    If another process has got its id since, this returns False.
    """
    host, pid, last = ["", "", *instance.rsplit("-", 2)][-3:]
    here = host == socket.gethostname() and last.startswith(_processes())
    if sys.platform == "win32" or not here or not pid.isdecimal():
        return False  # on Windows, os.kill may end the process
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _processes() -> str:
    """Return four digits that differ between containers, whose host names may be equal."""
    try:
        name = str(_PROCESSES.readlink())
    except OSError:
        name = ""
    return blake2b(name.encode(), digest_size=2).hexdigest()
