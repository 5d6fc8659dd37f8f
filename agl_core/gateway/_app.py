"""The gateway server: one per run, on the run's event loop, shared by all attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ssl import SSLContext

from agl_core import waits
from agl_core.errors import StoreError
from agl_core.gateway._attempts import Attempts, OpenAttempt, ProxiedCall
from agl_core.gateway._endpoints import Endpoints
from agl_core.gateway._proxy import Proxy
from agl_core.gateway._recording import Recording, RecordingOptions
from agl_core.gateway._replay import find_replay
from agl_core.gateway._routing import Route, Router
from agl_core.gateway.probe import probe
from agl_core.interfaces import (
    Admission,
    Backend,
    Capabilities,
    Dialect,
    RecordObserver,
    RewriterFactory,
    RouteFactory,
    Store,
)
from agl_core.serving import AttemptKeys, GuestServer, address_of, asgi, bind, fresh_key
from agl_core.types import Attempt, Losses, Policy, Rollout

__all__ = ["GatewayOptions", "GatewayServer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """A gateway's address, keys, seeding and recording."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: the operating system chooses a free port."""
    deterministic: bool = False
    """Seed the calls of frozen policies too, not only those of trainable ones."""
    tls: SSLContext | None = None
    """Serve ``https://``; see `agl_core.serving.tls_context`."""
    recording: RecordingOptions = field(default_factory=RecordingOptions)
    secret: str = ""
    """The agents' keys are derived from it. Empty: the gateway generates one."""
    operator_key: str = ""
    """Key for routes that are not for agents alone: a collector sends spans of many attempts. Empty:
    no key opens them for operators."""
    restartable: bool = False
    """The gateway may restart during a run. Calls of an attempt unknown to this instance then fail
    with the status of an engine error, so that the rollout gets another attempt."""


class GatewayServer:
    """The proxy that records exact tokens; implements `agl_core.interfaces.Gateway`.

    The gateway never closes the backends; its caller does.
    """

    def __init__(
        self,
        store: Store,
        options: GatewayOptions | None = None,
        *,
        routes: Mapping[str, RouteFactory] | None = None,
        dialects: Mapping[str, Dialect] | None = None,
        rewriters: Sequence[RewriterFactory] = (),
        admissions: Sequence[Admission] = (),
    ) -> None:
        """Create a gateway that does not listen yet.

        Args:
            store: Receives the call records.
            options: Address and behaviour.
            routes: Routes of plugins, by method and path; see `RouteFactory`.
            dialects: Dialects of plugins, by method and path below ``/v1``.
            rewriters: Changes of requests by plugins, in order.
            admissions: Checks of model requests by plugins, in order; `stop` closes them.

        Raises:
            PluginError: the name of a route or dialect is not a method and path, or the gateway
                serves that path itself.
        """
        self._options = options or GatewayOptions()
        self._keys = AttemptKeys(self._options.secret or fresh_key())
        self._router = Router()
        self.losses = Losses()
        """Losses that no record shows, by cause: late and restarted calls, late records, distorted
        sampling.

        Calls that are recorded as failed, incomplete or superseded are not counted here but when
        the records become training data.
        """
        self._store = store
        self._rewriters = [make(store) for make in rewriters]
        self._attempts = Attempts(restartable=self._options.restartable)
        served = {name: make(store, self.losses) for name, make in (routes or {}).items()}
        self._recording = Recording(
            store,
            self._attempts,
            losses=self.losses,
            options=self._options.recording,
            observers=[route for route in served.values() if isinstance(route, RecordObserver)],
        )
        deterministic = self._options.deterministic
        self._proxy = Proxy(
            self._router, self._recording, losses=self.losses, deterministic=deterministic
        )
        self._endpoints = Endpoints(
            keys=self._keys,
            router=self._router,
            attempts=self._attempts,
            recording=self._recording,
            proxy=self._proxy,
            routes=served,
            dialects=dialects or {},
            losses=self.losses,
            operator_key=self._options.operator_key,
            admissions=admissions,
        )
        self._server: GuestServer | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """``http://host:port``, or ``https://``, without a path; empty before `start`."""
        return self._url

    @property
    def client_key(self) -> str:
        """Bearer token of the run's clients; it gives access to no attempt."""
        return self._keys.client

    def attempt_key(self, rollout_id: str, attempt_id: str) -> str:
        """Return the bearer token that gives access to this attempt only."""
        return self._keys.of(rollout_id, attempt_id)

    @property
    def in_flight(self) -> int:
        """Number of requests in progress, including those held by `pause`."""
        return len(self._proxy.calls)

    @property
    def unwritten(self) -> int:
        """Number of records that are not in the store yet."""
        return self._recording.unwritten

    async def start(self) -> None:
        """Start to listen.

        Raises:
            ConfigError: the address is in use or does not belong to this machine.
        """
        if self._server is not None:
            return
        listener = bind(self._options.host, self._options.port)
        tls = self._options.tls
        self._server = GuestServer(self._endpoints, tls=tls)
        self._recording.start()
        await self._server.start(listener)
        self._url = address_of(listener, tls=tls)

    async def stop(self) -> None:
        """Abort running calls, close the socket, write the remaining records; idempotent.

        Raises:
            StoreError: records of attempts that were never sealed could not be written.
        """
        if self._server is None:
            return
        await self.break_off()
        await self._server.stop()
        self._server = None
        self._attempts.close()
        await self._recording.stop()
        for admission in self._endpoints.admissions:
            await admission.close()

    async def break_off(self) -> None:
        """Abort all running calls; clients that have received nothing get 503."""
        calls = list(self._proxy.calls)
        for call in calls:
            call.stop("stopped")
        await self._end(calls)

    def mount(self, control: asgi.AsgiApp) -> None:
        """Serve `control` below `agl_core.serving.RPC_PREFIX`; it checks its own key."""
        self._endpoints.control = control

    async def route(self, policy: Policy, backend: Backend) -> None:
        """Serve `policy` from `backend`; calling again replaces the version or the backend.

        The model in requests to the backend is the backend's ``model`` attribute if it has a
        non-empty one, else ``policy.model``, else the policy's name.
        """
        self._router.set(policy, backend)

    def replace_routes(self, routes: Sequence[Route], *, deterministic: bool) -> None:
        """Serve exactly these policies.

        Args:
            routes: The routes, in the order of the configuration.
            deterministic: Seed the calls of frozen policies too.
        """
        self._router.replace(routes)
        self._proxy.deterministic = deterministic

    async def probe(self, policy: str) -> Capabilities:
        """Find the capabilities of the policy's backend; see `agl_core.gateway.probe.probe`.

        Raises:
            MissingTokensError: the policy is trainable and the backend returns no token ids.
            EngineError: the backend does not answer.
        """
        found = await probe(self._router[policy])
        self._router.probed(policy, found.logprobs)
        return found

    async def open(self, rollout: Rollout, attempt: Attempt) -> None:
        """Accept calls of this attempt from now on.

        Seals earlier attempts of the rollout that are still open, and overdue ones of any rollout.

        Raises:
            StaleAttemptError: the attempt has been sealed.
            StoreError: the records of an earlier attempt could not be written or read.
        """
        left = self._attempts.left_behind(rollout, attempt.fence)
        unwritten = [span for each in left for span in each.unwritten]
        replay = await find_replay(self._store, rollout, attempt, unwritten)
        for each in left:
            await self.seal(each.attempt.id)
        rewrites = [await rewriter.prepare(rollout) for rewriter in self._rewriters]
        self._attempts.open(rollout, attempt, replay, rewrites=tuple(filter(None, rewrites)))

    async def flush(self, attempt_id: str) -> None:
        """Write the records of an attempt, which stays open.

        Waits up to `waits.RETURNED_CALLS_S` for running calls: an agent program that has returned
        has read its answers, but the last of them may not be recorded yet.

        Raises:
            StoreError: the records could not be written, or not in time.
        """
        attempt = self._attempts.find(attempt_id)
        if attempt is None:
            return
        await _wait(attempt.calls, waits.RETURNED_CALLS_S)
        await self._write(attempt)

    async def _write(self, attempt: OpenAttempt) -> None:
        try:
            await asyncio.wait_for(self._recording.write(attempt), waits.RECORDS_S)
        except TimeoutError as error:
            raise StoreError(
                f"The store did not accept the call records of attempt {attempt.attempt.id!r} "
                f"within {waits.RECORDS_S:.0f} s: check that it can be reached"
            ) from error

    async def seal(self, attempt_id: str) -> int:
        """Refuse further calls of an attempt, abort running ones, write its records.

        The duration is bounded: a call that does not end when stopped is recorded as an error.

        Returns:
            The number of recorded requests, counting every try; 0 for an attempt that was never
            open.

        Raises:
            StoreError: the records could not be written, or not in time; `seal` can be repeated.
        """
        attempt = self._attempts.find(attempt_id)
        if attempt is None:
            return self._attempts.recorded(attempt_id)
        attempt.sealed = True
        calls = list(attempt.calls)
        for call in calls:
            call.stop("sealed")
        await self._end(calls)
        await self._write(attempt)
        if self._attempts.find(attempt_id) is not None:
            self._attempts.forget(attempt_id)
        return attempt.recorded

    async def _end(self, calls: Sequence[ProxiedCall]) -> None:
        """Wait until stopped calls are recorded; record those that do not end as errors."""
        await _wait(calls, waits.STOPPED_CALLS_S)
        for call in calls:
            self._recording.give_up(call)

    async def lost(self) -> Losses:
        """Return a copy of the current `losses`."""
        return Losses(counts=dict(self.losses.counts))

    async def pause(self) -> None:
        """Hold new calls until `resume`."""
        self._proxy.pause()

    async def drain(self, *, timeout_s: float) -> int:
        """Wait for running calls; abort those that take longer than `timeout_s`, return how many.

        An aborted call whose client has received nothing runs again after `resume`. The stream of
        any other aborted call ends early, and its record is incomplete.
        """
        return await self._proxy.drain(timeout_s=timeout_s)

    async def resume(self) -> None:
        """Run the held calls, and new ones."""
        self._proxy.resume()


async def _wait(calls: Iterable[ProxiedCall], timeout_s: float) -> None:
    """Wait until the calls are recorded, at most `timeout_s`."""
    if ends := [call.ended() for call in calls]:
        await asyncio.wait(ends, timeout=timeout_s)
