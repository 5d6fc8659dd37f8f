"""A gateway with a memory store and one open attempt per client.

``gateway_process.py BACKEND_URL ATTEMPTS [LIMITS]`` prints one JSON line once it listens: the
port, the API key and the identity headers of every attempt. LIMITS is a section ``[limits]`` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

from agl_endpoints import HttpBackend
from agl_remote._process import rare_collections, serving_loop

from agl_core.clocks import new_id
from agl_core.config import resolve
from agl_core.gateway import GatewayServer
from agl_core.store._memory import MemoryStore
from agl_core.types import Policy, Rollout, Task


async def serve(backend_url: str, attempts: int, limits: str = "") -> None:
    """Serve until killed."""
    store = MemoryStore()
    await store.open()
    admissions = []
    if limits:
        from agl_limits._gateway import make_admission

        admissions = [make_admission(resolve({"model": "m", "limits": json.loads(limits)}))]
    gateway = GatewayServer(store, admissions=admissions)
    backend = HttpBackend(backend_url, model="weights")
    await gateway.route(Policy(name="policy", agents=("writer",), trainable=True), backend)
    await gateway.start()
    await gateway.probe("policy")
    rollouts = [
        Rollout(id=new_id("ro"), task=Task(id="t"), run_id="bench", seed=1) for _ in range(attempts)
    ]
    await store.enqueue(rollouts)
    identities: list[dict[str, str]] = []
    for claim in await store.claim("bench", limit=attempts):
        await gateway.open(claim.rollout, claim.attempt)
        identities.append(
            {
                "x-agl-rollout": claim.rollout.id,
                "x-agl-attempt": claim.attempt.id,
                "x-agl-agent": "writer",
                "authorization": "Bearer "
                + gateway.attempt_key(claim.rollout.id, claim.attempt.id),
            }
        )
    ready = {
        "port": int(gateway.url.rpartition(":")[2]),
        "identities": identities,
    }
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """Run the gateway like `agl gateway`."""
    loop = serving_loop()
    asyncio.set_event_loop(loop)
    with rare_collections():
        loop.run_until_complete(serve(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))


if __name__ == "__main__":
    main()
