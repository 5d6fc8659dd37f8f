"""Attempts to send from, with the integration attached."""

import pytest
from agl_http_clients._integration import HttpClients

from agl_core.tracing import attach
from tests.core.tracing.conftest import make_context, make_server, server
from tests.core.tracing.test_elsewhere import make, other

__all__ = ["make", "make_context", "make_server", "other", "server"]


@pytest.fixture
def attached():
    attachment = attach(integrations=[HttpClients()])
    yield attachment
    attachment.detach()
