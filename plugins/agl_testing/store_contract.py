"""What every store has to do, as tests that an implementation inherits."""

from __future__ import annotations

from agl_testing._store_attempts import AttemptRules
from agl_testing._store_lead import LeadRules
from agl_testing._store_queue import QueueRules
from agl_testing._store_records import RecordRules


class StoreContract(QueueRules, AttemptRules, RecordRules, LeadRules):
    """Tests of a `StoreLifecycle`; they need pytest-asyncio in auto mode.

    A subclass declares `durable` and supplies three fixtures: ``store`` and ``dropping_store``,
    opened and empty, the second with retention ``drop_spans``; and ``reopen``, an async callable
    that takes a store from its owner as a crash would, without ending its attempts, and gives an
    opened store on the same medium. The fixtures close what they opened::

        class TestMyStore(StoreContract):
            durable = True

            @pytest.fixture
            async def store(self, tmp_path):
                store = MyStore(tmp_path / "db")
                await store.open()
                yield store
                await store.close()
    """
