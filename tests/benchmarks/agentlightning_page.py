"""The dashboard of agentlightning over a store in memory: ``agentlightning_page.py ROLLOUTS PORT``."""

from __future__ import annotations

import asyncio
import sys

from agentlightning.store.client_server import LightningStoreServer
from agentlightning.store.memory import InMemoryLightningStore


async def main(rollouts: int, port: int) -> None:
    """Fill the store with queued rollouts, and serve it until the process is ended."""
    store = InMemoryLightningStore(thread_safe=True)
    for number in range(rollouts):
        await store.enqueue_rollout(input={"question": f"question {number}"}, mode="train")
    server = LightningStoreServer(store, host="127.0.0.1", port=port)
    await server.run_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
