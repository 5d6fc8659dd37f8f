"""The hooks: some register objects, which the configuration names; the others observe a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

from agl_core.interfaces import AttemptRecord, Register, Store
from agl_core.types import (
    Attempt,
    Batch,
    Losses,
    Report,
    Resources,
    Rollout,
    Span,
    Trajectory,
    Update,
)

if TYPE_CHECKING:
    from agl_core.config import RunConfig

PROJECT = "agl_core"
"""Name of the pluggy project and of the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
"""Marks the declaration of a hook."""
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks the implementation of a hook in a plugin."""


class RegisterSpecs:
    """Offer objects by name. Called once, when the plugin loads."""

    @hookspec(historic=True)
    def agl_register_integrations(self, register: Register) -> None:
        """Offer framework integrations: factories of `agl_core.interfaces.Integration`."""

    @hookspec(historic=True)
    def agl_register_stores(self, register: Register) -> None:
        """Offer stores: ``factory(options, directory: Path) -> StoreLifecycle``.

        `directory` is the run's, or its folder ``eval``. `agl_core.store.StoreOptions` is the base of
        the options.
        """

    @hookspec(historic=True)
    def agl_register_layers(self, register: Register) -> None:
        """Offer layers of stores: ``factory(options, store: StoreLifecycle) -> StoreLifecycle``.

        A layer changes records before they are stored and after they are read, in every process
        that opens a store; `agl_stores.StoreLayer` passes the rest on. The name is the section of
        the configuration that asks for it, and the registered options describe the section. Where
        there is no configuration, such as for ``agl store ls``, and in runs without the section,
        only layers are used whose options have ``always = True``; they get None. The layer whose
        options have the lowest ``order`` (0 by default) is next to the records; of an equal one,
        the first by name.
        """

    @hookspec(historic=True)
    def agl_register_adapters(self, register: Register) -> None:
        """Offer adapters: ``factory(agents, *, policies, channel_weights) -> Adapter``."""

    @hookspec(historic=True)
    def agl_register_rewards(self, register: Register) -> None:
        """Offer reward factories: ``factory(**options) -> RewardFunction``."""

    @hookspec(historic=True)
    def agl_register_algorithms(self, register: Register) -> None:
        """Offer algorithms: ``factory(options) -> Algorithm``."""

    @hookspec(historic=True)
    def agl_register_optimizers(self, register: Register) -> None:
        """Offer prompt optimisers: ``factory(options) -> Optimizer``."""

    @hookspec(historic=True)
    def agl_register_tuners(self, register: Register) -> None:
        """Offer what tunes prompts: ``factory(setup: TuningSetup) -> Tuner``.

        A run that captures or tunes prompts uses the one named ``prompts``.
        """

    @hookspec(historic=True)
    def agl_register_losses(self, register: Register) -> None:
        """Offer an engine's losses, named ``<engine>.<loss>``."""

    @hookspec(historic=True)
    def agl_register_engines(self, register: Register) -> None:
        """Offer engines: ``factory(options, setup: AlgorithmSetup | None) -> Engine``."""

    @hookspec(historic=True)
    def agl_register_models(self, register: Register) -> None:
        """Offer weights that a configuration may name: ``locate(say: Callable[[str], None]) -> Path``.

        It gives their directory, and fetches them into it where that has not been done; `say` is
        called with what takes a while.
        """

    @hookspec(historic=True)
    def agl_register_tasks(self, register: Register) -> None:
        """Offer sets of tasks that ``tasks.train`` and ``tasks.val`` may name: ``factory(split)``.

        It returns the rows of the split ``train`` or ``val``, as `agl_core.train` takes them; no
        row is in both. The name contains no dot and no colon.

        Other names offer readers, which give an iterable of rows. The name ``.csv`` reads files
        with this ending: ``factory(path: Path, label: str)``; `label` begins messages. The name
        ``s3:`` reads addresses of this scheme: ``factory(address: str, label: str, read)``, where
        ``read(path)`` gives the rows of a local file with the same ending. The name ``<object>``
        reads what `agl_core.train` is given: ``factory(rows: Any, label: str)``.
        """

    @hookspec(historic=True)
    def agl_register_metrics(self, register: Register) -> None:
        """Offer metrics: ``metric(batch: Batch) -> dict[str, float]``, logged each step."""

    @hookspec(historic=True)
    def agl_register_diagnoses(self, register: Register) -> None:
        """Offer diagnoses of attempts, as `agl_core.interfaces.Diagnose` states.

        All that are registered are called after the adapter, except those whose extra is not
        installed; steps and report hold their sums as `breaks`.
        """

    @hookspec(historic=True)
    def agl_register_filters(self, register: Register) -> None:
        """Offer filters of training: ``factory(options: dict) -> Filter``.

        The name is the section of the configuration that asks for it, and `options` is the section,
        which belongs to an observer or layer of the same name. See `agl_core.interfaces.Filter`.
        """

    @hookspec(historic=True)
    def agl_register_trackers(self, register: Register) -> None:
        """Offer experiment trackers: ``factory(options) -> Tracker``."""

    @hookspec(historic=True)
    def agl_register_observers(self, register: Register) -> None:
        """Offer observers of trainings: ``factory(config, plugins, describe) -> RunObserver``.

        The name is the section of the configuration that asks for it, such as ``trackers``; the
        registered options describe the section. `describe` returns the `TrackedRun`, once the run
        has its store's lease. One with a true attribute `brings_checkpoints` is entered before the
        others, as it may bring the checkpoint that the run continues from. A name with a dot is
        what the observer before the dot uses, as that observer states; ``<name>.runner`` is what
        follows an ``agl runner``, ``factory(config, plugins)``.
        """

    @hookspec(historic=True)
    def agl_register_checks(self, register: Register) -> None:
        """Offer what ``agl doctor`` asks: ``check(records, config) -> Iterable[Finding]``."""

    @hookspec(historic=True)
    def agl_register_routes(self, register: Register) -> None:
        """Offer routes of the gateway: ``factory(store: Store, losses: Losses) -> GatewayRoute``.

        The name is the method and the path below ``/v1``, such as ``POST /traces``; for a route
        whose ``access`` is ``operators`` the whole path, such as ``GET /metrics``. All routes that
        are registered are served. One with a method ``recorded(span)`` gets the record of every
        model request.
        """

    @hookspec(historic=True)
    def agl_register_dialects(self, register: Register) -> None:
        """Offer APIs that clients may speak at the gateway: ``read(body: bytes)``.

        It gives the chat completion request that asks for the same, and what says the answer in the
        dialect, as `agl_core.interfaces.Dialect` states. The name is the method and the path below
        ``/v1``, such as ``POST /responses``. All dialects that are registered are served.
        """

    @hookspec(historic=True)
    def agl_register_rewriters(self, register: Register) -> None:
        """Offer changes of model requests: ``factory(store: Store) -> Rewriter``.

        A rewriter changes the messages and tools of requests before the gateway sends them, as
        `agl_core.interfaces.Rewriter` states. All rewriters that are registered are used, in the
        order of their names.
        """

    @hookspec(historic=True)
    def agl_register_admissions(self, register: Register) -> None:
        """Offer checks of model requests at the gateway: ``factory(config) -> Admission``.

        The name is the section of the configuration that asks for it, such as ``limits``; the
        registered options describe the section. `agl_core.interfaces.Admission` states the check,
        which may refuse a request. ``agl gateway --config`` uses the section of that file.
        """

    @hookspec(historic=True)
    def agl_register_gateways(self, register: Register) -> None:
        """Offer clients of gateways in other processes: ``factory(url: str, use: GatewayUse)``.

        It returns an `agl_core.interfaces.Gateway`. The name is the scheme of ``gateway.url``, such
        as ``http``.
        """

    @hookspec(historic=True)
    def agl_register_displays(self, register: Register) -> None:
        """Offer displays of a run: ``factory(stream: TextIO) -> AbstractContextManager[Observer]``.

        Each run enters the context and leaves it at its end. `stream` is a console or a file. All
        displays that are registered are used. A run that is started with ``progress=False`` uses
        only factories with an attribute ``always``, with None for a stream. A factory with a method
        ``plot(report)`` also draws reports, for `Report.plot`.
        """

    @hookspec(historic=True)
    def agl_register_exporters(self, register: Register) -> None:
        """Offer where ``agl store export`` sends a store.

        ``async send(store, url, *, query, headers, content) -> Sent``, as `agl_core.interfaces.Exporter`
        states.
        """

    @hookspec(historic=True)
    def agl_register_panels(self, register: Register) -> None:
        """Offer pages of the dashboard: ``factory() -> Panel``; the name is a part of the address."""

    @hookspec(historic=True)
    def agl_register_commands(self, register: Register) -> None:
        """Offer click commands of the ``agl`` program.

        A name such as ``train.--dashboard`` adds an option to a command: ``factory() -> click.Option``.
        The option does its work in its callback, with ``expose_value=False``.
        """


class ObserveSpecs:
    """Watch a run. A hook that raises stops the run as `PluginError` naming its plugin."""

    @hookspec
    def agl_config_resolved(self, config: RunConfig) -> None:
        """The configuration is final, its agent and rewards are found; nothing has started."""

    @hookspec
    def agl_run_started(self, run_id: str, store: Store, config: RunConfig) -> None:
        """Store, gateway and engine are up; no rollout has been queued."""

    @hookspec
    def agl_rollout_started(self, rollout: Rollout, attempt: Attempt) -> None:
        """A worker has claimed the rollout; the agent has not been called."""

    @hookspec
    def agl_rollout_finished(
        self, rollout: Rollout, attempt: Attempt, spans: Sequence[Span]
    ) -> None:
        """The attempt is sealed; `spans` are those of tracing, without the gateway's."""

    @hookspec
    def agl_trajectories_built(
        self, record: AttemptRecord, trajectories: Sequence[Trajectory]
    ) -> None:
        """One attempt has been joined."""

    @hookspec
    def agl_batch_built(self, batch: Batch, step: int) -> None:
        """The step's batch is ready; it has not been trained on."""

    @hookspec
    def agl_update_applied(self, update: Update, step: int, losses: Losses) -> None:
        """New weights serve; a plugin adds to `losses` what it could not keep of the step."""

    @hookspec
    def agl_resources_published(self, resources: Resources) -> None:
        """The store holds a new version."""

    @hookspec
    def agl_run_finished(self, report: Report) -> None:
        """The run has ended well; its report is written."""
