"""A gateway that is another process, as trainer and runners see it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

import msgspec

from agl_core import waits
from agl_core.errors import AglError, EngineError, StoreError
from agl_core.gateway.backend_server import BackendServer
from agl_core.gateway.control import (
    DesiredState,
    Draining,
    Endpoint,
    Flushing,
    Opening,
    Probing,
    Sealing,
    Service,
    Status,
    Watching,
)
from agl_core.gateway.routing import Route
from agl_core.interfaces import Backend, Capabilities
from agl_core.serving import AttemptKeys, HttpBackend, Patience, Peer
from agl_core.types import Attempt, Losses, Policy, Rollout
from agl_core.types.ids import new_id

_log = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0

RESTARTS: Final = "gateway_restarts"
"""Loss: a gateway was restarted; what it lost in its last moments is not known."""
UNHEARD: Final = "gateway_unheard"
"""Loss: the gateway was away when it was asked what it had lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """What a trainer tells its gateway, and how long a gateway may be away."""

    deterministic: bool = False
    """Seed the calls of frozen policies too."""
    backend_host: str = "127.0.0.1"
    """Address of this machine at which the gateway reaches engines of this process."""
    patience: Patience = field(default_factory=Patience)


@dataclass(slots=True)
class _Ledger:
    """Losses of a gateway, summed over its instances."""

    instance_id: str
    base: dict[str, int]
    """What it had lost before anybody here used it."""
    ended: Losses = field(default_factory=Losses)
    """Of the instances before."""
    now: dict[str, int] = field(default_factory=dict[str, int])

    def hear(self, status: Status) -> None:
        if status.instance_id != self.instance_id:
            self.ended.merge(Losses(counts=self.now))
            self.ended.add(RESTARTS)
            self.instance_id, self.now = status.instance_id, {}
        # Counts only grow: an answer that was overtaken on its way tells less.
        self.now = {
            cause: max(self.now.get(cause, 0), status.lost.get(cause, 0))
            for cause in self.now.keys() | status.lost.keys()
        }

    def total(self) -> Losses:
        total = Losses(counts=dict(self.ended.counts))
        total.merge(Losses(counts=self.now))
        for cause, count in self.base.items():
            total.add(cause, -count)
        return Losses(counts={cause: count for cause, count in total.counts.items() if count})


class RemoteGateway:
    """A `GatewayServer` in another process; fulfils `agl_core.interfaces.Gateway`.

    Calls wait out a gateway that restarts. A trainer, which routes, learns of a new instance over a
    connection that the gateway holds, and sends it the desired state again; runners only open and
    seal, and an attempt that outlived the gateway it was opened at cannot be sealed well.
    """

    def __init__(self, url: str, key: str, options: RemoteOptions | None = None) -> None:
        """Describe it; `start` connects.

        Args:
            url: ``http://host:port``, as the agents reach it too.
            key: Bearer token that the processes of the run share.
            options: For trainers.
        """
        self._options = options or RemoteOptions()
        self._peer = Peer(
            url, key, what="gateway", error=EngineError, patience=self._options.patience
        )
        self._keys = AttemptKeys(key)
        self._lives: dict[str, str] = {}
        self._trainer = new_id("trainer")
        self._number = 0
        self._services: dict[str, Service] = {}
        self._backends = BackendServer(self._options.backend_host)
        self._paused = False
        self._told = ""
        """The instance that holds the desired state."""
        self._ledger = _Ledger("", {})
        self._watching: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """``http://host:port`` without a path."""
        return self._peer.url

    @property
    def client_key(self) -> str:
        """Bearer token of the run's clients; it opens no attempt."""
        return self._keys.client

    def attempt_key(self, rollout_id: str, attempt_id: str) -> str:
        """Bearer token that opens this attempt and no other; the gateway derives the same."""
        return self._keys.of(rollout_id, attempt_id)

    async def start(self) -> None:
        """Connect.

        Raises:
            ConfigError: the key is wrong, or the gateway is of another version.
            EngineError: there is none at the address.
        """
        status: Status = await self._peer.call("instance", {}, Status)
        self._ledger = _Ledger(status.instance_id, status.lost, now=dict(status.lost))

    async def stop(self) -> None:
        """Take leave and close all connections; idempotent. The gateway goes on."""
        try:
            watching, self._watching = self._watching, None
            if watching is not None:
                watching.cancel()
                await asyncio.wait({watching})
                self._services.clear()
                try:
                    await asyncio.wait_for(self._tell(), waits.LEAVE_S)
                except (TimeoutError, AglError) as error:
                    _log.warning("The gateway at %s was not told of the end: %s", self.url, error)
            await self._backends.stop()
        finally:
            await self._peer.close()

    async def route(self, policy: Policy, backend: Backend) -> None:
        """Serve `policy` from `backend`; calling again replaces the version or the backend.

        An `HttpBackend` is called by the gateway itself. Any other is served to it from here.
        """
        known = self._services.get(policy.name)
        self._services[policy.name] = Service(
            policy=policy,
            endpoint=await self._endpoint(policy, backend),
            logprobs=known.logprobs if known is not None else "raw",
        )
        await self._tell()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="agl-gateway-watch")

    async def probe(self, policy: str) -> Capabilities:
        """Ask the policy's backend for a few tokens and report what came back.

        Raises:
            MissingTokensError: the policy is trainable and the backend gives no token ids.
            EngineError: the backend does not answer.
        """
        try:
            found: Capabilities = await self._peer.call(
                "probe", Probing(policy=policy), Capabilities
            )
        except EngineError as error:
            if self._services[policy].endpoint.api_key != self._backends.key:
                raise
            raise EngineError(
                f"{error} The gateway at {self.url} has to reach this process there: set "
                f"gateway.backend_host to an address of this machine"
            ) from error
        service = self._services[policy]
        self._services[policy] = msgspec.structs.replace(service, logprobs=found.logprobs)
        return found

    async def open(self, rollout: Rollout, attempt: Attempt) -> None:
        """Accept calls of this attempt from now on; waits for a trainer that serves policies.

        Raises:
            StaleAttemptError: it has been sealed.
            EngineError: there is no gateway, or none that serves a policy in time.
        """
        there = attempt.shifted(self._peer.skew.ahead_s)
        opening = Opening(rollout=rollout, attempt=there)
        self._lives[attempt.id] = await self._peer.call("open", opening, str)

    async def flush(self, attempt_id: str) -> None:
        """Write the records of an attempt, which stays open.

        Raises:
            EngineError: there is no gateway.
            StoreError: the records could not be written.
        """
        await self._peer.call("flush", Flushing(attempt_id=attempt_id), bool)

    async def seal(self, attempt_id: str) -> int:
        """Refuse further calls of an attempt, write its records; returns their number.

        Raises:
            EngineError: the gateway was restarted since the attempt was opened: records may be
                missing.
            StoreError: the records could not be written; sealing again tries again.
        """
        sealing = Sealing(attempt_id=attempt_id, instance_id=self._lives.pop(attempt_id, ""))
        try:
            count: int = await self._peer.call("seal", sealing, int)
        except StoreError:
            self._lives[attempt_id] = sealing.instance_id
            raise
        return count

    async def pause(self) -> None:
        """Hold new calls at the door."""
        self._paused = True
        await self._tell()

    async def drain(self, *, timeout_s: float) -> int:
        """Wait for calls in flight; those that outlive `timeout_s` are aborted and retried."""
        count: int = await self._peer.call("drain", Draining(timeout_s=timeout_s), int)
        return count

    async def resume(self) -> None:
        """Let calls in again."""
        self._paused = False
        await self._tell()

    async def lost(self) -> Losses:
        """What the gateway lost since `start`, its former instances included."""
        try:
            self._ledger.hear(await self._peer.call("losses", {}, Status))
        except EngineError:
            _log.warning("The gateway could not be asked what it lost", exc_info=True)
            self._ledger.ended.add(UNHEARD)
        return self._ledger.total()

    async def _endpoint(self, policy: Policy, backend: Backend) -> Endpoint:
        model = Route(policy, backend).upstream_model
        if isinstance(backend, HttpBackend):
            return Endpoint(base_url=backend.base_url, api_key=backend.api_key, model=model)
        await self._backends.start()
        url = self._backends.serve(policy.name, backend)
        return Endpoint(base_url=url, api_key=self._backends.key, model=model)

    async def _tell(self) -> None:
        """Send the desired state to the gateway."""
        self._number += 1
        desired = DesiredState(
            trainer=self._trainer,
            number=self._number,
            services=list(self._services.values()),
            paused=self._paused,
            deterministic=self._options.deterministic,
        )
        status: Status = await self._peer.call("serve", desired, Status)
        self._ledger.hear(status)
        self._told = status.instance_id

    async def _watch(self) -> None:
        """Learn of losses and of new instances, for as long as this gateway is used."""
        told = ""
        while True:
            watching = Watching(
                trainer=self._trainer, instance_id=self._told, lost=self._ledger.now
            )
            try:
                status: Status = await self._peer.call("watch", watching, Status)
                self._ledger.hear(status)
                if status.instance_id != self._told:
                    _log.warning(
                        "The gateway at %s was restarted: sending the desired state again", self.url
                    )
                    await self._tell()
            except AglError as error:
                # Whatever the run asks next of the gateway will say so if it is gone.
                if str(error) != told:
                    told = str(error)
                    _log.warning("The gateway at %s cannot be watched: %s", self.url, told)
                await asyncio.sleep(_AGAIN_S)
