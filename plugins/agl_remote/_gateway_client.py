"""Client of a gateway in another process, and a server for the backends of this process."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, Final
from urllib.parse import quote

import msgspec
from agl_counting import count_prompt
from agl_endpoints import Answering, HttpBackend

from agl_core import waits
from agl_core.clocks import new_id
from agl_core.errors import AglError, EngineError, StoreError
from agl_core.gateway import Route
from agl_core.interfaces import COUNT_PATH, Backend, Capabilities, Gateway, GatewayUse, Problem
from agl_core.serving import AttemptKeys, GuestServer, address_of, asgi, bind, fresh_key, shared_key
from agl_core.text import decoded
from agl_core.types import Attempt, Losses, Policy, Rollout
from agl_remote._gateway_control import (
    BackendAddress,
    DesiredState,
    DrainRequest,
    FlushRequest,
    GatewayStatus,
    OpenRequest,
    ProbeRequest,
    SealRequest,
    ServedPolicy,
    WatchRequest,
)
from agl_remote._peer import Patience, Peer

_log = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0
_CHAT: Final = "/v1/chat/completions"

RESTARTS: Final = "gateway_restarts"
"""Loss: a gateway was restarted; the losses that it had not reported are unknown."""
UNANSWERED: Final = "gateway_unanswered"
"""Loss: the gateway did not answer when it was asked for its losses."""


@dataclass(slots=True)
class _LossTotals:
    """Losses of a gateway, summed over its instances."""

    instance_id: str
    base: dict[str, int]
    """The gateway's losses when this process connected, which are not counted."""
    ended: Losses = field(default_factory=Losses)
    """Losses of earlier instances."""
    now: dict[str, int] = field(default_factory=dict[str, int])

    def update(self, status: GatewayStatus) -> None:
        if status.instance_id != self.instance_id:
            self.ended.merge(Losses(counts=self.now))
            self.ended.add(RESTARTS)
            self.instance_id, self.now = status.instance_id, {}
        # Counts only grow: a status that arrives late may be older.
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
    """Client of a `GatewayServer` in another process; implements `agl_core.interfaces.Gateway`.

    Requests wait while the gateway restarts. A trainer keeps a ``watch`` request open, from whose
    answer it sees a new instance, and sends that instance its desired state again. Runners only
    open, flush and seal attempts; sealing an attempt that was opened at an earlier instance fails.
    """

    def __init__(
        self,
        url: str,
        key: str,
        use: GatewayUse | None = None,
        *,
        patience: Patience | None = None,
    ) -> None:
        """Create a client; `start` connects.

        Args:
            url: ``http://host:port`` of the gateway; agents use the same address.
            key: Bearer token that the processes of the run share.
            use: Settings of a trainer.
            patience: How long to wait for a gateway that is down.
        """
        use = use or GatewayUse()
        self._deterministic = use.deterministic
        self._peer = Peer(
            url, key, what="gateway", error=EngineError, patience=patience or Patience()
        )
        self._keys = AttemptKeys(key)
        self._opened_at: dict[str, str] = {}
        self._trainer = new_id("trainer")
        self._number = 0
        self._services: dict[str, ServedPolicy] = {}
        self._backends = BackendServer(use.backend_host, tls=use.tls)
        self._paused = False
        self._informed = ""
        """The instance that has the current desired state."""
        self._losses = _LossTotals("", {})
        self._watching: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """``http://host:port`` without a path."""
        return self._peer.url

    @property
    def client_key(self) -> str:
        """Bearer token of the run's clients; it gives access to no attempt."""
        return self._keys.client

    def attempt_key(self, rollout_id: str, attempt_id: str) -> str:
        """Return the bearer token for this attempt only; the gateway derives the same one."""
        return self._keys.of(rollout_id, attempt_id)

    async def start(self) -> None:
        """Connect.

        Raises:
            ConfigError: the key is wrong, or the gateway has another version.
            EngineError: no gateway answers at the address.
        """
        status: GatewayStatus = await self._peer.call("instance", {}, GatewayStatus)
        self._losses = _LossTotals(status.instance_id, status.lost, now=dict(status.lost))

    async def stop(self) -> None:
        """Withdraw all policies and close all connections; idempotent. The gateway keeps running."""
        try:
            watching, self._watching = self._watching, None
            if watching is not None:
                watching.cancel()
                await asyncio.wait({watching})
                self._services.clear()
                try:
                    await asyncio.wait_for(self._publish(), waits.LEAVE_S)
                except (TimeoutError, AglError) as error:
                    _log.warning(
                        "The gateway at %s did not take the end of the run: %s", self.url, error
                    )
            await self._backends.stop()
        finally:
            await self._peer.close()

    async def route(self, policy: Policy, backend: Backend) -> None:
        """Serve `policy` from `backend`; calling again replaces the version or the backend.

        The gateway calls an `HttpBackend` directly; any other backend is served to it by this
        process.
        """
        known = self._services.get(policy.name)
        self._services[policy.name] = ServedPolicy(
            policy=policy,
            endpoint=await self._endpoint(policy, backend),
            logprobs=known.logprobs if known is not None else "raw",
        )
        await self._publish()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="agl-gateway-watch")

    async def probe(self, policy: str) -> Capabilities:
        """Find the capabilities of the policy's backend with short requests.

        Raises:
            MissingTokensError: the policy is trainable and the backend returns no token ids.
            EngineError: the backend does not answer.
        """
        try:
            found: Capabilities = await self._peer.call(
                "probe", ProbeRequest(policy=policy), Capabilities
            )
        except EngineError as error:
            if self._services[policy].endpoint.api_key != self._backends.key:
                raise
            raise EngineError(
                f"{error} The gateway at {self.url} has to reach this process there: "
                f"{self._backends.advice}"
            ) from error
        service = self._services[policy]
        self._services[policy] = msgspec.structs.replace(service, logprobs=found.logprobs)
        return found

    async def open(self, rollout: Rollout, attempt: Attempt) -> None:
        """Accept calls of this attempt from now on; waits for a trainer that serves policies.

        Raises:
            StaleAttemptError: the attempt has been sealed.
            EngineError: no gateway answers, or it gets no policy before the attempt's deadline.
        """
        there = attempt.shifted(self._peer.skew.ahead_s)
        opening = OpenRequest(rollout=rollout, attempt=there)
        self._opened_at[attempt.id] = await self._peer.call("open", opening, str)

    async def flush(self, attempt_id: str) -> None:
        """Write the records of an attempt, which stays open.

        Raises:
            EngineError: no gateway answers.
            StoreError: the records could not be written.
        """
        await self._peer.call("flush", FlushRequest(attempt_id=attempt_id), bool)

    async def seal(self, attempt_id: str) -> int:
        """Refuse further calls of an attempt, write its records and return their number.

        Raises:
            EngineError: no gateway answers, or it was restarted since the attempt was opened, so
                that records may be missing: repeating `seal` raises again.
            StoreError: the records could not be written; `seal` can be repeated.
        """
        opened_at = self._opened_at.pop(attempt_id, "")
        sealing = SealRequest(attempt_id=attempt_id, instance_id=opened_at)
        try:
            count: int = await self._peer.call("seal", sealing, int)
        except (EngineError, StoreError):
            self._opened_at[attempt_id] = opened_at
            raise
        return count

    async def pause(self) -> None:
        """Hold new calls until `resume`."""
        self._paused = True
        await self._publish()

    async def drain(self, *, timeout_s: float) -> int:
        """Wait for running calls; abort those that exceed `timeout_s`, return how many."""
        count: int = await self._peer.call("drain", DrainRequest(timeout_s=timeout_s), int)
        return count

    async def resume(self) -> None:
        """Run the held calls, and new ones."""
        self._paused = False
        await self._publish()

    async def lost(self) -> Losses:
        """Return the gateway's losses since `start`, including those of earlier instances."""
        try:
            self._losses.update(await self._peer.call("losses", {}, GatewayStatus))
        except EngineError:
            _log.warning("The gateway could not be asked what it lost", exc_info=True)
            self._losses.ended.add(UNANSWERED)
        return self._losses.total()

    async def _endpoint(self, policy: Policy, backend: Backend) -> BackendAddress:
        model = Route(policy, backend).upstream_model
        if isinstance(backend, HttpBackend):
            return BackendAddress(base_url=backend.base_url, api_key=backend.api_key, model=model)
        await self._backends.start()
        url = self._backends.serve(policy.name, backend)
        return BackendAddress(base_url=url, api_key=self._backends.key, model=model)

    async def _publish(self) -> None:
        """Send the desired state to the gateway."""
        self._number += 1
        desired = DesiredState(
            trainer=self._trainer,
            number=self._number,
            services=list(self._services.values()),
            paused=self._paused,
            deterministic=self._deterministic,
        )
        status: GatewayStatus = await self._peer.call("serve", desired, GatewayStatus)
        self._losses.update(status)
        self._informed = status.instance_id

    async def _watch(self) -> None:
        """Update losses and detect new instances until cancelled."""
        warned = ""
        while True:
            watching = WatchRequest(
                trainer=self._trainer, instance_id=self._informed, lost=self._losses.now
            )
            try:
                status: GatewayStatus = await self._peer.call("watch", watching, GatewayStatus)
                self._losses.update(status)
                if status.instance_id != self._informed:
                    _log.warning(
                        "The gateway at %s was restarted: sending the desired state again", self.url
                    )
                    await self._publish()
            except AglError as error:
                # If the gateway has ended, the run's next request to it raises.
                if str(error) != warned:
                    warned = str(error)
                    _log.warning("The gateway at %s cannot be watched: %s", self.url, warned)
                await asyncio.sleep(_AGAIN_S)


def make_gateway(url: str, use: GatewayUse) -> Gateway:
    """Return the client of the gateway at an address, without connecting.

    Raises:
        ConfigError: there is no shared key.
    """
    return RemoteGateway(url, shared_key(), use)


class BackendServer:
    """Server for OpenAI chat completions of any `Backend`, with one base URL per policy and a key.

    The server never closes the backends; its caller does.
    """

    def __init__(self, host: str = "127.0.0.1", *, tls: SSLContext | None = None) -> None:
        """Create a server that does not listen yet.

        Args:
            host: Address of this machine that the gateway can reach; the system chooses the port.
            tls: Settings of TLS, with a certificate for `host`; None: it speaks plain HTTP.
        """
        self.key = fresh_key()
        """Bearer token that the gateway must send."""
        self._host = host
        self._tls = tls
        self._bearer = f"Bearer {self.key}".encode()
        self._backends: dict[bytes, Backend] = {}
        self._counting: dict[bytes, Backend] = {}
        self._answering = Answering("The trainer, which has the engine, is ending")
        self._server: GuestServer | None = None
        self._url = ""

    @property
    def advice(self) -> str:
        """What the user should set if the gateway cannot reach this server."""
        advice = "set gateway.backend_host to an address of this machine"
        if self._tls is None:
            return advice
        return f"{advice} that gateway.tls_cert names, and start agl gateway with --ca FILE"

    async def start(self) -> None:
        """Start to listen; idempotent.

        Raises:
            ConfigError: the host is not an address of this machine.
        """
        if self._server is not None:
            return
        listener = bind(self._host, 0)
        self._answering.begin()
        self._server = GuestServer(self._app, tls=self._tls)
        await self._server.start(listener)
        self._url = address_of(listener)
        if self._tls is not None:  # a certificate may be for a name, which is an address by now
            host = f"[{self._host}]" if ":" in self._host else self._host
            self._url = f"https://{host}:{self._url.rpartition(':')[2]}"

    async def stop(self) -> None:
        """Abort running answers and close the socket; idempotent."""
        server, self._server = self._server, None
        self._answering.end()
        if server is not None:
            await server.stop()

    def serve(self, policy: str, backend: Backend) -> str:
        """Serve a policy from `backend`, replacing an earlier one; return the base URL."""
        path = f"/{quote(policy, safe='')}"
        self._backends[f"{path}{_CHAT}".encode()] = backend
        self._counting[f"{path}{COUNT_PATH}".encode()] = backend
        return f"{self._url}{path}/v1"

    async def _app(self, scope: asgi.AsgiScope, receive: asgi.Receive, send: asgi.Send) -> None:
        try:
            backend = self._find(scope)
            body = await asgi.read_body(receive)
            if scope["raw_path"] in self._counting:
                counted = await count_prompt(backend, body)
                await asgi.respond(send, 200, msgspec.json.encode(counted))
                return
        except asgi.ClientLeft:
            return
        except Problem as problem:
            await asgi.respond(send, problem.status, problem.body())
            return
        await self._answering.answer(backend, body, scope, send)

    def _find(self, scope: Mapping[str, Any]) -> Backend:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._bearer):
            raise Problem(401, "invalid_api_key", "This backend answers its run's gateway only")
        path: bytes = scope["raw_path"]
        backend = self._backends.get(path) or self._counting.get(path)
        if backend is None or scope["method"] != "POST":
            shown = decoded(path)
            raise Problem(404, "not_found", f"No policy is served at {scope['method']} {shown}")
        return backend
