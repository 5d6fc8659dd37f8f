"""A process that answers as MongoDB does: mongoeco in memory, on Python 3.13.

No package brings a MongoDB server. mongoeco speaks its protocol. It has transactions, which conflict
with any other write, and neither change streams nor records that survive its process. It keeps a
transaction whose commit failed, so that later ones of the same session read it; here it ends, as in MongoDB.
"""

import asyncio
import sys

from mongoeco.engines.memory import MemoryEngine
from mongoeco.errors import OperationFailure
from mongoeco.session import ClientSession
from mongoeco.wire import AsyncMongoEcoProxyServer, WireAuthUser

commit = ClientSession.commit_transaction


def commit_or_abort(session):
    try:
        commit(session)
    except OperationFailure as error:
        session.abort_transaction()
        raise OperationFailure(
            str(error), code=112, error_labels=("TransientTransactionError",)
        ) from error


async def main():
    users = ()
    if "users" in sys.argv:
        users = (WireAuthUser(username="locked", password="sesame", source="admin"),)
    ClientSession.commit_transaction = commit_or_abort
    server = AsyncMongoEcoProxyServer(
        engine=MemoryEngine(), host="127.0.0.1", port=int(sys.argv[1]), auth_users=users
    )
    await server.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


asyncio.run(main())
