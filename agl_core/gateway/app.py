"""The gateway as a server: one per run, on the run's event loop, shared by all attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agl_core import waits
from agl_core.errors import StoreError
from agl_core.gateway.attempts import Attempts, OpenAttempt, ProxiedCall
from agl_core.gateway.endpoints import Endpoints
from agl_core.gateway.probe import probe
from agl_core.gateway.proxy import Proxy
from agl_core.gateway.recording import Recording, RecordingOptions
from agl_core.gateway.replay import find_replay
from agl_core.gateway.routing import Route, Router
from agl_core.interfaces import Backend, Capabilities, Dialect, RouteFactory, Store
from agl_core.serving import AttemptKeys, GuestServer, address_of, asgi, bind, fresh_key
from agl_core.types import Attempt, Losses, Policy, Rollout

__all__ = ["GatewayOptions", "GatewayServer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """How a gateway listens, seeds and writes."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: one the system chooses."""
    deterministic: bool = False
    """Seed the calls of frozen policies too."""
    recording: RecordingOptions = field(default_factory=RecordingOptions)
    secret: str = ""
    """The agents' keys are derived from it; a fresh one when empty."""
    operator_key: str = ""
    """Opens the metrics, and routes such as that of traces: a collector sends for many attempts.
    Empty: no key does."""
    restartable: bool = False
    """Attempts may have begun in an earlier instance of this gateway: calls of an attempt that it
    does not know fail as the engine's fault, so that the attempt is tried again."""


class GatewayServer:
    """The proxy that records exact tokens; fulfils `agl_core.interfaces.Gateway`.

    The caller closes the backends; the gateway never does.
    """

    def __init__(
        self,
        store: Store,
        options: GatewayOptions | None = None,
        *,
        routes: Mapping[str, RouteFactory] | None = None,
        dialects: Mapping[str, Dialect] | None = None,
    ) -> None:
        """Set up without listening.

        Args:
            store: Where call records go.
            options: Address and behaviour.
            routes: What is served beside model calls, by method and path below ``/v1``.
            dialects: What clients may speak beside chat completions, by method and path too.

        Raises:
            PluginError: a route or a dialect cannot be served under its name.
        """
        self._options = options or GatewayOptions()
        self._keys = AttemptKeys(self._options.secret or fresh_key())
        self._router = Router()
        self.losses = Losses()
        """What no record shows, by cause: late and restarted calls, late records, distorted sampling.

        Calls whose records say that they failed, broke off or were tried again are counted where
        training data is made.
        """
        self._store = store
        self._attempts = Attempts(restartable=self._options.restartable)
        self._recording = Recording(
            store,
            self._attempts,
            losses=self.losses,
            options=self._options.recording,
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
            routes={name: make(store, self.losses) for name, make in (routes or {}).items()},
            dialects=dialects or {},
            losses=self.losses,
            operator_key=self._options.operator_key,
        )
        self._server: GuestServer | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """``http://host:port`` without a path; empty before `start`."""
        return self._url

    @property
    def client_key(self) -> str:
        """Bearer token of the run's clients; it opens no attempt."""
        return self._keys.client

    def attempt_key(self, rollout_id: str, attempt_id: str) -> str:
        """Bearer token that opens this attempt and no other."""
        return self._keys.of(rollout_id, attempt_id)

    @property
    def in_flight(self) -> int:
        """Requests under way, held ones included."""
        return len(self._proxy.calls)

    @property
    def unwritten(self) -> int:
        """Records that the store has not taken yet."""
        return self._recording.unwritten

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the address is taken or not ours.
        """
        if self._server is not None:
            return
        listener = bind(self._options.host, self._options.port)
        self._server = GuestServer(self._endpoints)
        self._recording.start()
        await self._server.start(listener)
        self._url = address_of(listener)

    async def stop(self) -> None:
        """Break off calls under way, close the socket, write what is left; idempotent.

        Raises:
            StoreError: records of attempts that were never sealed could not be written.
        """
        if self._server is None:
            return
        await self.break_off()
        await self._server.stop()
        self._server = None
        await self._recording.stop()

    async def break_off(self) -> None:
        """End all calls under way; clients that have received nothing get 503."""
        calls = list(self._proxy.calls)
        for call in calls:
            call.stop("stopped")
        await self._end(calls)

    def mount(self, control: asgi.App) -> None:
        """Serve methods below `agl_core.serving.RPC_PREFIX`, behind a key of their own."""
        self._endpoints.control = control

    async def route(self, policy: Policy, backend: Backend) -> None:
        """Serve `policy` from `backend`; calling again replaces the version or the backend.

        A backend with a non-empty ``model`` attribute is asked for that model, any other for
        ``policy.model``, or the policy's name where that is empty.
        """
        self._router.set(policy, backend)

    def replace_routes(self, routes: Sequence[Route], *, deterministic: bool) -> None:
        """Serve exactly these policies.

        Args:
            routes: In the order of the configuration.
            deterministic: Seed the calls of frozen policies too.
        """
        self._router.replace(routes)
        self._proxy.deterministic = deterministic

    async def probe(self, policy: str) -> Capabilities:
        """Ask the policy's backend for a few tokens; see `agl_core.gateway.probe.probe`.

        Raises:
            MissingTokensError: the policy is trainable and the backend gives no token ids.
            EngineError: the backend does not answer.
        """
        found = await probe(self._router[policy])
        self._router.probed(policy, found.logprobs)
        return found

    async def open(self, rollout: Rollout, attempt: Attempt) -> None:
        """Accept calls of this attempt from now on.

        What earlier attempts of the rollout left open is sealed.

        Raises:
            StaleAttemptError: it has been sealed.
            StoreError: what an earlier attempt left could not be written, or read.
        """
        left = self._attempts.left_behind(rollout, attempt.fence)
        unwritten = [span for each in left for span in each.unwritten]
        replay = await find_replay(self._store, rollout, attempt, unwritten)
        for each in left:
            await self.seal(each.attempt.id)
        self._attempts.open(rollout, attempt, replay)

    async def flush(self, attempt_id: str) -> None:
        """Write the records of an attempt, which stays open.

        Calls under way get a moment to end: an agent that has returned has read its answers, but
        the last of them may not be recorded yet.

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
                f"The store did not take the call records of attempt {attempt.attempt.id!r} within "
                f"{waits.RECORDS_S:.0f} s: see whether it answers"
            ) from error

    async def seal(self, attempt_id: str) -> int:
        """Refuse further calls of an attempt, end those under way, write its records.

        Returns the number of recorded requests, every try counted; 0 for an attempt that was never
        open.

        It ends in bounded time: a call that does not end when stopped is recorded as an error.

        Raises:
            StoreError: the records could not be written, or not in time; sealing again tries again.
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
        """Wait until stopped calls are recorded; those that do not end are recorded as such."""
        await _wait(calls, waits.STOPPED_CALLS_S)
        for call in calls:
            self._recording.give_up(call)

    async def lost(self) -> Losses:
        """`losses`, as they stand."""
        return Losses(counts=dict(self.losses.counts))

    async def pause(self) -> None:
        """Hold new calls until `resume`."""
        self._proxy.pause()

    async def drain(self, *, timeout_s: float) -> int:
        """Wait for calls in flight; abort those that outlive `timeout_s`, return how many.

        Aborted calls of which the client has seen nothing run again after `resume`; the streams of
        the others break, and are recorded as incomplete.
        """
        return await self._proxy.drain(timeout_s=timeout_s)

    async def resume(self) -> None:
        """Run the calls that were held, and new ones."""
        self._proxy.resume()


async def _wait(calls: Iterable[ProxiedCall], timeout_s: float) -> None:
    """Wait until calls are recorded, for so long at most."""
    if ends := [call.ended() for call in calls]:
        await asyncio.wait(ends, timeout=timeout_s)
