"""The methods with which trainer and runners control a gateway in another process."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from functools import partial
from typing import Final

import msgspec
from agl_endpoints import HttpBackend

from agl_core.clocks import monotonic, new_id
from agl_core.errors import ConfigError, EngineError
from agl_core.gateway import GatewayServer, Route
from agl_core.interfaces import Capabilities
from agl_core.types import Attempt, LogprobsMode, Policy, Rollout
from agl_remote._rpc import RpcApp, RpcRequest

_ABSENT_S: Final = 1.0
"""A trainer without a ``watch`` request for this long has ended: it sends the next one after each
answer."""
_PATIENCE_S: Final = 3.0
"""How long a new trainer waits until an earlier one, possibly just killed, is disconnected."""
_LOOK_S: Final = 0.5
"""Interval between checks for new losses; a gateway that is killed loses those not sent yet."""


class BackendAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Address of the backend of a policy, as seen from the gateway."""

    base_url: str
    api_key: str
    model: str


class ServedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy and the address of its backend."""

    policy: Policy
    endpoint: BackendAddress
    logprobs: LogprobsMode = "raw"


class DesiredState(msgspec.Struct, frozen=True, kw_only=True):
    """The complete state that a trainer wants of its gateway, also of one that was restarted."""

    trainer: str
    """Identifies this process of the trainer."""
    number: int
    """Increases with each state of a trainer; a state that arrives after a newer one is ignored."""
    services: list[ServedPolicy]
    """The served policies; empty when the trainer ends."""
    paused: bool
    deterministic: bool


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    rollout: Rollout
    attempt: Attempt


class SealRequest(msgspec.Struct, frozen=True, kw_only=True):
    attempt_id: str
    instance_id: str
    """The gateway instance that opened the attempt; empty if it is not known."""


class FlushRequest(msgspec.Struct, frozen=True, kw_only=True):
    attempt_id: str


class WatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    trainer: str
    instance_id: str
    lost: dict[str, int]
    """The losses that the trainer knows; the gateway answers when they have changed."""


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    policy: str


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    timeout_s: float


class GatewayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Instance and losses of a gateway, for its trainer."""

    instance_id: str
    lost: dict[str, int]
    """Losses by cause since this instance started."""


class GatewayControl:
    """Control methods of one `GatewayServer`, served on the same port as the agents' calls.

    Attempts are opened only while a trainer is connected that has sent its desired state; otherwise
    `open` waits.
    """

    def __init__(self, gateway: GatewayServer, key: str) -> None:
        """Mount the methods; `start` listens.

        Args:
            gateway: A gateway that does not listen yet.
            key: Bearer token of trainer and runners; agents must not have it.
        """
        self._gateway = gateway
        self.instance_id = new_id("gw")
        self._desired: DesiredState | None = None
        self._watches = 0
        self._absence: asyncio.TimerHandle | None = None
        self._alone = asyncio.Event()
        self._alone.set()
        self._serving = asyncio.Event()
        self._backends: dict[BackendAddress, HttpBackend] = {}
        self._context = copy_context()
        """Of whom makes the gateway: it has the limits of the endpoints."""
        methods = {
            "instance": self._report,
            "losses": self._report,
            "serve": self._serve,
            "watch": self._watch,
            "probe": self._probe,
            "drain": self._drain,
            "open": self._open,
            "flush": self._flush,
            "seal": self._seal,
        }
        self._rpc = RpcApp(methods, key=key, instance=self.instance_id)
        gateway.mount(self._rpc)

    async def start(self) -> None:
        """Start to listen.

        Raises:
            ConfigError: the address is in use or does not belong to this machine.
        """
        await self._gateway.start()

    async def stop(self) -> None:
        """Stop the gateway; callers repeat their running requests at the next instance.

        Raises:
            StoreError: records could not be written.
        """
        self._rpc.close()
        try:
            await self._gateway.stop()
        finally:
            for backend in self._backends.values():
                await backend.close()
            self._backends.clear()

    async def _report(self, request: RpcRequest) -> GatewayStatus:
        del request
        return self._status()

    def _status(self) -> GatewayStatus:
        return GatewayStatus(instance_id=self.instance_id, lost=dict(self._gateway.losses.counts))

    async def _serve(self, request: RpcRequest) -> GatewayStatus:
        desired = msgspec.json.decode(request.body, type=DesiredState)
        known = self._desired
        if known is not None and known.trainer == desired.trainer:
            if desired.number <= known.number:
                return self._status()
        elif known is not None:
            await self._replace_trainer(known.trainer)
        self._desired = desired
        if desired.paused:
            await self._gateway.pause()
        routes = [self._route(service) for service in desired.services]
        self._gateway.replace_routes(routes, deterministic=desired.deterministic)
        if not desired.paused:
            await self._gateway.resume()
        if not desired.services:
            self._alone.set()  # it has ended, even if its connection is still open
        self._update_serving()
        await self._forget_backends({service.endpoint for service in desired.services})
        return self._status()

    async def _replace_trainer(self, trainer: str) -> None:
        """Wait until an earlier trainer is disconnected, then abort its calls.

        Raises:
            ConfigError: the earlier trainer stays connected.
        """
        try:
            await asyncio.wait_for(self._alone.wait(), _PATIENCE_S)
        except TimeoutError as error:
            raise ConfigError(
                f"The gateway at {self._gateway.url} serves {trainer}, which is connected: end "
                f"that one, or give this run a gateway of its own"
            ) from error
        await self._gateway.break_off()

    def _route(self, service: ServedPolicy) -> Route:
        endpoint = service.endpoint
        backend = self._backends.get(endpoint)
        if backend is None:
            make = partial(HttpBackend, endpoint.base_url, endpoint.api_key, endpoint.model)
            backend = self._backends[endpoint] = self._context.run(make)
        return Route(service.policy, backend, service.logprobs)

    async def _forget_backends(self, used: set[BackendAddress]) -> None:
        """Close the backends that serve no policy any more, unless calls are running."""
        if self._gateway.in_flight:
            return
        # All are removed first: another desired state may arrive while one is being closed.
        idle = [self._backends.pop(endpoint) for endpoint in self._backends.keys() - used]
        for backend in idle:
            await backend.close()

    @property
    def _has_policies(self) -> bool:
        """Whether a trainer has sent its desired state and has not ended."""
        return self._desired is not None and bool(self._desired.services)

    def _update_serving(self) -> None:
        """Open attempts while a trainer with policies is connected, else let `open` wait."""
        if self._has_policies and not self._alone.is_set():
            self._serving.set()
        else:
            self._serving.clear()

    async def _watch(self, request: RpcRequest) -> GatewayStatus:
        watching = msgspec.json.decode(request.body, type=WatchRequest)
        if watching.instance_id != self.instance_id or not self._has_policies:
            return self._status()
        self._check_served(watching.trainer)
        self._arrive()
        try:
            while self._has_policies and self._gateway.losses.counts == watching.lost:
                await asyncio.sleep(_LOOK_S)
                self._check_served(watching.trainer)
        finally:
            self._leave()
        return self._status()

    def _check_served(self, trainer: str) -> None:
        """Check that no other trainer has replaced this one.

        Raises:
            ConfigError: another trainer has.
        """
        served = self._desired.trainer if self._desired is not None else ""
        if served != trainer:
            raise ConfigError(
                f"The gateway at {self._gateway.url} serves {served} now, as {trainer} was not "
                f"connected for a while: give each run a gateway of its own"
            )

    def _arrive(self) -> None:
        self._watches += 1
        self._alone.clear()
        if self._absence is not None:
            self._absence.cancel()
        self._update_serving()

    def _leave(self) -> None:
        self._watches -= 1
        if not self._watches:
            self._absence = asyncio.get_running_loop().call_later(_ABSENT_S, self._left)

    def _left(self) -> None:
        self._alone.set()
        self._update_serving()

    async def _probe(self, request: RpcRequest) -> Capabilities:
        probing = msgspec.json.decode(request.body, type=ProbeRequest)
        await self._serving.wait()
        return await self._gateway.probe(probing.policy)

    async def _drain(self, request: RpcRequest) -> int:
        draining = msgspec.json.decode(request.body, type=DrainRequest)
        return await self._gateway.drain(timeout_s=draining.timeout_s)

    async def _open(self, request: RpcRequest) -> str:
        opening = msgspec.json.decode(request.body, type=OpenRequest)
        await self._served(opening)
        await self._gateway.open(opening.rollout, opening.attempt)
        return self.instance_id

    async def _served(self, opening: OpenRequest) -> None:
        if self._serving.is_set():
            return
        deadline = opening.attempt.monotonic_deadline(opening.rollout.limits)
        try:
            await asyncio.wait_for(self._serving.wait(), max(deadline - monotonic(), 0.0))
        except TimeoutError as error:
            raise EngineError(
                f"The gateway at {self._gateway.url} has no policy for attempt "
                f"{opening.attempt.id!r}: see whether the trainer runs, with this gateway.url"
            ) from error

    async def _flush(self, request: RpcRequest) -> bool:
        flushing = msgspec.json.decode(request.body, type=FlushRequest)
        await self._gateway.flush(flushing.attempt_id)
        return True

    async def _seal(self, request: RpcRequest) -> int:
        sealing = msgspec.json.decode(request.body, type=SealRequest)
        count = await self._gateway.seal(sealing.attempt_id)
        if sealing.instance_id not in ("", self.instance_id):
            raise EngineError(
                f"The gateway at {self._gateway.url} was restarted while attempt "
                f"{sealing.attempt_id!r} ran: calls that it had answered may not be on record"
            )
        return count
