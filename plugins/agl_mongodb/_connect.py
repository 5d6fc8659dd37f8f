"""Clients of the server, the collections of a store, and the version of their form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from pymongo import ASCENDING, AsyncMongoClient, IndexModel, MongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError, OperationFailure

from agl_core.errors import StoreError
from agl_core.store import without_password
from agl_mongodb._errors import MongoAddress
from agl_mongodb._options import MongoOptions

Document = dict[str, Any]

SCHEMA_VERSION: Final = 1
OWNERS: Final = "agl_owners"
ROLLOUTS: Final = "agl_rollouts"
_ROLLOUT_INDEXES: Final = [
    IndexModel([("status", ASCENDING), ("number", ASCENDING)]),
    IndexModel([("run_id", ASCENDING), ("_id", ASCENDING)]),
    IndexModel([("group_id", ASCENDING), ("_id", ASCENDING)]),
    IndexModel([("attempts.id", ASCENDING)]),
    IndexModel([("due_at", ASCENDING)], sparse=True),
]


@dataclass(frozen=True, slots=True)
class MongoServer:
    """A database and how to connect to it."""

    options: MongoOptions
    shown: MongoAddress

    @classmethod
    def of(cls, options: MongoOptions) -> MongoServer:
        _, _, user = urlsplit(options.url).netloc.rpartition("@")[0].partition(":")
        return cls(options, MongoAddress(without_password(options.url), unquote(user)))

    def client(self) -> MongoClient[Document]:
        """Return a client for threads; it connects at its first query.

        Raises:
            PyMongoError: the address has a parameter that the driver refuses.
            StoreError: the same.
        """
        try:
            return MongoClient(self.options.url, **self._settings())
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"{self.shown.address} is not an address that MongoDB's driver reads: "
                f"{self.shown.clean(error)}"
            ) from None

    def async_client(self) -> AsyncMongoClient[Document]:
        """Return a client for the event loop; see `client`."""
        settings: dict[str, Any] = {**self._settings(), "minPoolSize": 0}
        return AsyncMongoClient(self.options.url, **settings)

    def database(self, client: MongoClient[Document]) -> Database[Document]:
        return client[self.options.database_name]

    def async_database(self, client: AsyncMongoClient[Document]) -> AsyncDatabase[Document]:
        return client[self.options.database_name]

    def _settings(self) -> dict[str, Any]:
        """Return the settings of a client, without those that the address gives."""
        options = self.options
        settings = {
            "appname": "agl-core",
            "w": "majority",
            "connectTimeoutMS": 10_000,
            "serverSelectionTimeoutMS": round(1000 * options.retry_s),
            "waitQueueTimeoutMS": round(1000 * options.pool_timeout_s),
            "maxPoolSize": options.pool_max,
            "minPoolSize": min(options.pool_size, options.pool_max),
            "maxIdleTimeMS": round(1000 * options.pool_recycle_s),
        }
        given = {name.lower() for name in parse_qs(urlsplit(options.url).query)}
        return {name: value for name, value in settings.items() if name.lower() not in given}


class Collections:
    """The collections of a store in a database."""

    def __init__(self, database: Database[Document]) -> None:
        self.rollouts: Collection[Document] = database[ROLLOUTS]
        """A rollout with its attempts per document."""
        self.spans: Collection[Document] = database["agl_spans"]
        self.resources: Collection[Document] = database["agl_resources"]
        self.single: Collection[Document] = database["agl_single"]
        """The version of the schema, the last number of a rollout, and the lead."""


def has_transactions(client: MongoClient[Document], options: MongoOptions) -> bool:
    """Return whether to use transactions.

    Raises:
        PyMongoError: the server cannot be reached.
        StoreError: the options require transactions, and the server has none.
    """
    hello = client.admin.command("hello")
    able = "setName" in hello or hello.get("msg") == "isdbgrid"
    if options.transactions == "always" and not able and not _takes_transactions(client):
        raise StoreError(
            f"The server at {without_password(options.url)} is no replica set, so it has no "
            f"transactions: start it with --replSet, or set store.transactions to auto"
        )
    return options.transactions == "always" or (able and options.transactions == "auto")


def _takes_transactions(client: MongoClient[Document]) -> bool:
    """Return whether a server that does not say so has transactions."""
    try:
        with client.start_session() as session, session.start_transaction():
            client.admin["agl_probe"].find_one({}, session=session)
    except OperationFailure:
        return False
    return True


def prepare(collections: Collections, shown: MongoAddress, *, create: bool) -> None:
    """Check the version of the collections, and create their indexes in an empty database.

    Raises:
        PyMongoError: the server cannot be reached, or refuses this.
        StoreError: there is no store, or it is that of a later release.
    """
    found = collections.single.find_one({"_id": "schema"})
    if found is None and not create:
        raise StoreError(
            f"There is no store in {shown.address}: the database has no collections of agl-core's"
        )
    if found is None:
        collections.rollouts.create_indexes(_ROLLOUT_INDEXES)
        collections.spans.create_index([("attempt", ASCENDING), ("id", ASCENDING)], unique=True)
        try:
            collections.single.insert_one({"_id": "schema", "version": SCHEMA_VERSION})
        except DuplicateKeyError:  # another process was faster
            found = collections.single.find_one({"_id": "schema"})
    version = found["version"] if found is not None else SCHEMA_VERSION
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"The store at {shown.address} was written by a newer agl-core (schema {version}, this "
            f"one reads up to {SCHEMA_VERSION}): upgrade agl-core"
        )
