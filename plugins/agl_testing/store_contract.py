"""The contract of stores."""

from __future__ import annotations

from agl_testing._store_attempts import AttemptRules
from agl_testing._store_lead import LeadRules
from agl_testing._store_queue import QueueRules
from agl_testing._store_records import RecordRules


class StoreContract(QueueRules, AttemptRules, RecordRules, LeadRules):
    """Contract suite of a `StoreLifecycle`; it needs pytest-asyncio in auto mode.

    A subclass declares `durable` and supplies three fixtures. ``store`` and ``dropping_store`` are
    opened and empty, the second with retention ``drop_spans``. ``reopen`` is an async callable: it
    takes a store, drops it as a crash would, without ending its attempts, and returns an opened
    store on the same medium. The fixtures close the stores they open::

        class TestMyStore(StoreContract):
            durable = True

            @pytest.fixture
            async def store(self, tmp_path):
                store = MyStore(tmp_path / "db")
                await store.open()
                yield store
                await store.close()
    """
