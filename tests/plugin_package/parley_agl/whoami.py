"""The route ``GET /whoami``: which attempt and agent a program's requests belong to."""

from __future__ import annotations

import json

from agl_core.interfaces import Access, RouteAnswer, RouteRequest, Store
from agl_core.types import Losses


class WhoAmI:
    """Answers with the identity of the request, for programs in any language."""

    access: Access = "agents"

    def __init__(self, store: Store, losses: Losses) -> None:
        """Create the route, which stores nothing and counts no losses."""

    async def serve(self, request: RouteRequest) -> RouteAnswer:
        """Return the attempt and agent of the request.

        Raises:
            Problem: the request names no attempt, or its key opens another one.
        """
        identity = request.identity()
        request.admit(identity.rollout_id, identity.attempt_id)
        found = {
            "rollout": identity.rollout_id,
            "attempt": identity.attempt_id,
            "agent": identity.agent,
        }
        return RouteAnswer(body=json.dumps(found).encode())
