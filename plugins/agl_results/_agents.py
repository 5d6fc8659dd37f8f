"""The requests of agents outside of runs: their policy, and their tuned prompts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from agl_prompts import RequestPrompts

from agl_core.gateway import ChatRequest, RequestChanges, Route
from agl_core.interfaces import Backend, Identity, Problem
from agl_core.types import Losses, PromptTemplate

_log = logging.getLogger("agl_core.results")


class Agents:
    """Routes requests by their agent, with captured prompts in place; implements `Routing`.

    An agent's policy is the one that served it in the run; the model in its requests does not
    count, as the program asks for its own. A request without an agent is routed by its model.
    """

    def __init__(
        self, routes: Sequence[Route], prompts: Mapping[str, PromptTemplate] | None = None
    ) -> None:
        """Set what is served.

        Args:
            routes: Policies in the order of the configuration, with their backends.
            prompts: Prompts of the run; those that are not captured change no request.
        """
        self._routes = routes
        self._rewrite = RequestPrompts((prompts or {}).values())
        self._missed: set[str] = set()
        """Agents whose known text was not found."""

    @property
    def models(self) -> Sequence[str]:
        return [route.policy.name for route in self._routes]

    def find(self, agent: str, body: bytes) -> tuple[Backend, bytes]:
        """See `Routing.find`.

        Raises:
            Problem: 400, the body is no chat request; 404, no policy serves the agent or model.
        """
        request = ChatRequest(body)
        route = self._route(agent, request.model)
        if agent:
            self._replace(agent, request)
        changes = RequestChanges(model=route.upstream_model, capture=False)
        return route.backend, request.prepare(changes)[0]

    def _route(self, agent: str, model: str) -> Route:
        for route in self._routes:
            if route.policy.serves(agent) if agent else model in ("", route.policy.name):
                return route
        asked = f"agent {agent!r}" if agent else f"model {model!r}"
        message = (
            f"No policy serves {asked}: send an agent's requests to /agent/NAME/v1, others with one "
            f"of the models {self.models}"
        )
        raise Problem(404, "model_not_found", message)

    def _replace(self, agent: str, request: ChatRequest) -> None:
        lost = Losses()
        identity = Identity(rollout_id="", attempt_id="", call_id="", agent=agent)
        request.rewrite(*self._rewrite(identity, request.messages, request.tools, lost))
        if lost.counts and agent not in self._missed:
            self._missed.add(agent)
            _log.warning(
                "A request of agent %r does not have the text that its tuned prompt replaces: it "
                "was sent as it is. Has the program's own prompt changed?",
                agent,
            )
