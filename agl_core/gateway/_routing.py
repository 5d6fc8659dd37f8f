"""Find the attempt and agent of a request, and the policy that serves it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Final

import msgspec

from agl_core import semconv
from agl_core.clocks import new_id
from agl_core.errors import ConfigError, PluginError
from agl_core.interfaces import Backend, Identity, Problem
from agl_core.serving import AttemptKeys
from agl_core.text import decoded, url_unquoted
from agl_core.types import LogprobsMode, Policy, Rollout, opponent

_PATH: Final = re.compile(
    rb"^(?:/r/(?P<rollout>[^/]+)/a/(?P<attempt>[^/]+)(?:/agent/(?P<agent>[^/]+))?)?/v1(?P<rest>/.*)$"
)
_PREFIX: Final = semconv.HEADER_PREFIX.encode()
_FIX: Final = (
    "send the headers x-agl-rollout and x-agl-attempt, which agl-core adds to requests over httpx "
    "where the context of the attempt is. Run threads of your own with "
    "contextvars.copy_context().run or asyncio.to_thread; give other HTTP clients, such as requests "
    "or aiohttp, and other processes what agl_core.tracing.child_environment(agent=...) returns: "
    "{gateway}/r/<rollout>/a/<attempt>/agent/<name>/v1 as base URL, and the key of the attempt"
)


_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Target(msgspec.Struct, frozen=True):
    """A parsed request path: the path below ``/v1`` and the identity in the URL."""

    path: str
    rollout_id: str = ""
    attempt_id: str = ""
    agent: str = ""


@lru_cache(maxsize=1024)  # most agents always use the same path
def parse_path(raw_path: bytes) -> Target | None:
    """Split an undecoded request path; return None if it has no ``/v1``."""
    match = _PATH.match(raw_path.partition(b"?")[0])
    if match is None:
        return None
    parts = [match["rollout"], match["attempt"], match["agent"]]
    return Target(decoded(match["rest"]), *(_decoded(part or b"") for part in parts))


def registered_path(kind: str, name: str, *, taken: str, methods: Sequence[str] = _METHODS) -> str:
    """Return the path below ``/v1`` in the name of a plugin's route or dialect.

    Args:
        kind: ``Route`` or ``Dialect``, for the error.
        name: Method and path under which it is registered.
        taken: Method and path that no plugin can register.
        methods: The allowed methods.

    Raises:
        PluginError: the name is not a method and path, or it is `taken`.
    """
    method, _, path = name.partition(" ")
    if method not in methods or not path.startswith("/"):
        raise PluginError(
            f"{kind} {name!r} cannot be served: register it under a method and a path below /v1, "
            f"such as 'POST /traces'"
        )
    if name == taken:
        raise PluginError(
            f"{kind} {name!r} cannot be served: {path} is served by agl-core itself; choose "
            f"another path"
        )
    return path


def identify(target: Target, headers: Iterable[tuple[bytes, bytes]]) -> Identity:
    """Return the identity in headers and URL.

    Raises:
        Problem: 400; the identity is missing or incomplete, or headers and URL differ.
    """
    given = {name.decode(): _decoded(value) for name, value in headers if name.startswith(_PREFIX)}
    identity = Identity(
        rollout_id=_agreed("rollout", given.get(semconv.HEADER_ROLLOUT, ""), target.rollout_id),
        attempt_id=_agreed("attempt", given.get(semconv.HEADER_ATTEMPT, ""), target.attempt_id),
        agent=_agreed("agent", given.get(semconv.HEADER_AGENT, ""), target.agent),
        alias=given.get(semconv.HEADER_ALIAS, ""),
        agent_run_id=given.get(semconv.HEADER_AGENT_RUN, ""),
        call_id=given.get(semconv.HEADER_CALL) or new_id("call"),
        trainable=given.get(semconv.HEADER_TRAINABLE, "1") != "0",
    )
    if not identity.rollout_id or not identity.attempt_id:
        raise Problem(400, "identity_missing", f"Request names no rollout and attempt: {_FIX}")
    return identity


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: its URL, headers and key."""

    target: Target
    headers: Sequence[tuple[bytes, bytes]]
    token: str
    """The request's key: one of this run, or the operators' key."""
    keys: AttemptKeys
    operator: bool = False
    """The request has the operators' key, which gives access to the traces of every attempt."""

    def identity(self) -> Identity:
        """Return the attempt, agent and call of the request, after checking its key.

        Raises:
            Problem: 400 if it names no attempt, or two; 403 if the key is not for the attempt.
        """
        identity = identify(self.target, self.headers)
        self.check(identity.rollout_id, identity.attempt_id)
        return identity

    def check(self, rollout_id: str, attempt_id: str) -> None:
        """Check that the key gives access to the attempt.

        Raises:
            Problem: 403; it does not.
        """
        if self.operator or self.keys.opens(self.token, rollout_id, attempt_id):
            return
        whose = "another attempt"
        if self.token == self.keys.client:
            whose = "the whole run, which opens no attempt"
        message = (
            f"The API key belongs to {whose}; attempt {attempt_id!r} of rollout {rollout_id!r} has "
            f"a separate key: send agl_core.current().llm.api_key, or the OPENAI_API_KEY of "
            f"child_environment()"
        )
        raise Problem(403, "wrong_attempt_key", message)


def _agreed(what: str, header: str, url: str) -> str:
    if header and url and header != url:
        message = (
            f"Header x-agl-{what} is {header!r}, but the URL has {url!r}: send the {what} in one of "
            f"them, or the same one in both"
        )
        raise Problem(400, "identity_conflict", message)
    return header or url


def _decoded(value: bytes) -> str:
    try:
        text = value.decode("ascii")
        return url_unquoted(text)
    except UnicodeDecodeError as error:
        message = f"Identity {value!r} is not percent-encoded UTF-8"
        raise Problem(400, "identity_encoding", message) from error


@dataclass(frozen=True, slots=True)
class Route:
    """A policy and its backend."""

    policy: Policy
    backend: Backend
    logprobs_mode: LogprobsMode = "raw"
    """Result of the probe. ``raw`` before the probe: such log-probabilities are those of the
    sampling distribution only at temperature 1."""

    @property
    def upstream_model(self) -> str:
        """The model's name in requests to the backend."""
        return self.backend.model or self.policy.model or self.policy.name


class Router:
    """The routes of all policies, in the order of the configuration."""

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}

    def set(self, policy: Policy, backend: Backend) -> None:
        """Add a policy, or replace its version or backend without changing the order."""
        old = self._routes.get(policy.name)
        mode = old.logprobs_mode if old else "raw"
        self._routes[policy.name] = Route(policy, backend, mode)

    def replace(self, routes: Iterable[Route]) -> None:
        """Replace all routes by these, in this order."""
        self._routes = {route.policy.name: route for route in routes}

    def probed(self, name: str, mode: LogprobsMode) -> None:
        """Store the log-probability mode that the probe found."""
        self._routes[name] = replace(self[name], logprobs_mode=mode)

    def __getitem__(self, name: str) -> Route:
        """Return the route of a policy.

        Raises:
            ConfigError: the policy is not routed.
        """
        try:
            return self._routes[name]
        except KeyError:
            raise ConfigError(
                f"Gateway has no policy {name!r}; it has {sorted(self._routes)}"
            ) from None

    @property
    def policies(self) -> Mapping[str, Route]:
        return self._routes

    def find(self, identity: Identity, model: str, rollout: Rollout) -> Route:
        """Return the route for a request: by its agent, else by its model, else by ``*``.

        In a training attempt, an agent of a trainable policy may be played by a policy with a
        share; see `agl_core.types.opponent`.

        Raises:
            Problem: 404 if no policy serves it; 503 if the gateway has no policy.
        """
        if not self._routes:
            message = (
                "The gateway serves no policy: no trainer has started, or the last one has ended"
            )
            raise Problem(503, "no_policy", message, retry=True)
        agent, routes = identity.known_as, self._routes.values()
        named = (r for r in routes if agent and r.policy.serves(agent))
        asked = (r for r in routes if model in (r.policy.name, r.policy.model) and model)
        rest = (r for r in routes if not agent and r.policy.serves(agent))
        for route in chain(named, asked, rest):
            if route.policy.trainable and rollout.mode == "train":
                found = (each.policy for each in routes)
                drawn = opponent(found, rollout.seed, agent=identity.agent, known_as=agent)
                return self._routes[drawn.name] if drawn is not None else route
            return route
        message = (
            f"No policy serves agent {agent!r} or model {model!r}: add the agent to the agents of "
            f"one of {sorted(self._routes)}"
        )
        raise Problem(404, "model_not_found", message)
