"""The wire's own clients."""

from __future__ import annotations

import ssl

import httpx
import httpx2
import pytest

from agl_core.tracing._wire import Direct

LIBRARIES = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])


def checks(client):
    return client._transport._pool._ssl_context.verify_mode is ssl.CERT_REQUIRED


@LIBRARIES
async def test_a_client_for_https_checks_certificates_also_after_one_for_http(library):
    """G3: a later run may have its gateway at an https address."""
    direct = Direct(library)
    plain, plain_async = direct.client(secure=False), direct.async_client(secure=False)

    assert checks(direct.client(secure=True))
    assert checks(direct.async_client(secure=True))
    assert direct.client(secure=False) is plain
    assert direct.async_client(secure=False) is plain_async
