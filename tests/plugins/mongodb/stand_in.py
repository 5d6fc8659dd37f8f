"""A process that answers as MongoDB does: mongoeco in memory, on Python 3.13.

No package brings a MongoDB server. mongoeco speaks its protocol. It has transactions, which conflict
with any other write, and neither change streams nor records that survive its process.
"""

import asyncio
import sys

from mongoeco.engines.memory import MemoryEngine
from mongoeco.wire import AsyncMongoEcoProxyServer, WireAuthUser


async def main():
    users = ()
    if "users" in sys.argv:
        users = (WireAuthUser(username="locked", password="sesame", source="admin"),)
    server = AsyncMongoEcoProxyServer(
        engine=MemoryEngine(), host="127.0.0.1", port=int(sys.argv[1]), auth_users=users
    )
    await server.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


asyncio.run(main())
