import logging
from collections.abc import Iterator

import pytest
from agl_privacy._logs import MaskingFactory

from tests.core.app.conftest import bench

__all__ = ["bench"]


@pytest.fixture(autouse=True)
def record_factory() -> Iterator[None]:
    """A factory of log records that no other test has changed."""
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(MaskingFactory(logging.LogRecord))
    yield
    logging.setLogRecordFactory(before)
