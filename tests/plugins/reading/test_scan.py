import pytest
from agl_reading import ScanReading
from agl_testing.reading_contract import ReadingContract


class TestScan(ReadingContract):
    @pytest.fixture
    async def read(self):
        async def opened(store):
            return ScanReading(store)

        return opened
