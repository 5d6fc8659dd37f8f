"""The store: the durable record of a run's rollouts, attempts, spans and resources.

To add a store, derive a class from `BaseStore`, implement `Records` for the storage medium, and
register the class with options that derive from `BaseStoreOptions`::

    @hookimpl
    def agl_register_stores(register):
        register("mine", "my_package.store:make_store", config="my_package.store:MyOptions")

    def make_store(options: MyOptions, directory: Path) -> BaseStore: ...

The module `_transitions` defines the allowed state changes, `_operations` implements the store's
methods on any `Records`, and `_base` adds waiting and notification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_core.store._base import BaseStore as BaseStore
    from agl_core.store._base import BatchingStore as BatchingStore
    from agl_core.store._base import Retention as Retention
    from agl_core.store._codec import ATTEMPTS as ATTEMPTS
    from agl_core.store._codec import RESOURCES as RESOURCES
    from agl_core.store._codec import ROLLOUTS as ROLLOUTS
    from agl_core.store._codec import SPANS as SPANS
    from agl_core.store._codec import Codec as Codec
    from agl_core.store._codec import encode as encode
    from agl_core.store._codec import encode_span as encode_span
    from agl_core.store._codec import json_value as json_value
    from agl_core.store._memory import MemoryStore as MemoryStore
    from agl_core.store._operations import Changes as Changes
    from agl_core.store._operations import ClaimRequest as ClaimRequest
    from agl_core.store._operations import Operations as Operations
    from agl_core.store._records import Lead as Lead
    from agl_core.store._records import Owner as Owner
    from agl_core.store._records import Prunable as Prunable
    from agl_core.store._records import Pruned as Pruned
    from agl_core.store._records import Readable as Readable
    from agl_core.store._records import Records as Records
    from agl_core.store._sqlite import SqliteStore as SqliteStore
    from agl_core.store._waiting import Clock as Clock
    from agl_core.store._waiting import SystemClock as SystemClock
    from agl_core.store._writing import whole_file as whole_file
    from agl_core.store.options import STORE_FILE as STORE_FILE
    from agl_core.store.options import BaseStoreOptions as BaseStoreOptions
    from agl_core.store.options import SqliteOptions as SqliteOptions
    from agl_core.store.options import StoreOptions as StoreOptions
    from agl_core.store.options import described as described
    from agl_core.store.options import layered as layered
    from agl_core.store.options import store_of as store_of
    from agl_core.store.options import store_options as store_options
    from agl_core.store.options import store_schemes as store_schemes
    from agl_core.store.options import store_section as store_section
    from agl_core.store.options import without_password as without_password
else:
    __getattr__, __dir__, __all__ = late(__name__)
