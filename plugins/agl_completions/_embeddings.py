"""Pass requests for embeddings on to the server of a policy (``POST .../v1/embeddings``)."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from agl_endpoints import HttpBackend

from agl_core.errors import EngineError
from agl_core.interfaces import Access, Problem, RouteAnswer, RouteRequest, Store, read_body
from agl_core.types import Losses

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TIMEOUT_S: Final = 600.0


class Embeddings:
    """Route that passes requests on; it records nothing, as embeddings have no tokens to train."""

    access: Access = "agents"

    def __init__(self, store: Store, losses: Losses) -> None:
        del store, losses

    async def serve(self, request: RouteRequest) -> RouteAnswer:
        """Answer as the server does that the request's ``model`` names.

        The model is the name of a policy with a ``base_url``, or that policy's model. The agent
        does not decide, unlike in model requests: its own policy writes texts.

        Raises:
            Problem: the attempt is not open, no such policy is a server, or it does not answer.
        """
        identity = request.identity()
        request.admit(identity.rollout_id, identity.attempt_id)
        fields = read_body(await request.body(), _fields.decode, what="embeddings request")
        asked = _name(fields.get("model"))
        unnamed = msgspec.structs.replace(identity, agent="", alias="")
        policy = request.policy(unnamed, asked)
        backend, model = request.backend(unnamed, asked)
        if asked not in (policy.name, policy.model) or not isinstance(backend, HttpBackend):
            message = (
                f"model: {asked!r} is no policy with a base_url, so it has no embeddings: add a "
                f"policy with the base_url of an embeddings server, and ask for it by name"
            )
            raise Problem(404, "model_not_found", message, param="model")
        sent = {**fields, "model": msgspec.Raw(msgspec.json.encode(model))}
        try:
            answer = await backend.post("/embeddings", msgspec.json.encode(sent), _TIMEOUT_S)
        except EngineError as error:
            raise Problem(502, "engine_error", str(error), retry=True) from error
        return RouteAnswer(status=answer.status, body=answer.body)


def _name(raw: msgspec.Raw | None) -> str:
    name: Any = None if raw is None else msgspec.json.decode(raw)
    if isinstance(name, str) and name:
        return name
    message = f"model: {name!r} is no name: send the name of the policy that has embeddings"
    raise Problem(400, "invalid_body", message, param="model")
