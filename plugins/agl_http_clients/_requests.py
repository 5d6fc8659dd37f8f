"""Model requests over urllib3, urllib.request and aiohttp.

They have no identity headers. Each is refused, counted, or sent to the gateway, as
`agl_core.tracing.check_request` decides. One function of each library is wrapped, as soon as the
library is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final

from agl_core.tracing import Patch, active, check_request, describe
from agl_http_clients._imports import ImportWatch

_log = logging.getLogger(__name__)

Function = Callable[..., Any]
Live = Callable[[], bool]
_URLLIB3: Final = "urllib3 (also under requests)"
_URLLIB: Final = "urllib.request"
_AIOHTTP: Final = "aiohttp"


class Requests:
    """Checks the requests of `LIBRARIES` while installed."""

    def __init__(self) -> None:
        """Start uninstalled."""
        self._patches: list[Patch] = []
        self._watch = ImportWatch(
            {module: partial(self._patch, make) for module, make in LIBRARIES.items()}
        )

    def install(self) -> None:
        self._watch.install()

    def remove(self) -> None:
        """Put the original functions back."""
        self._watch.remove()
        while self._patches:
            self._patches.pop().remove()

    def _patch(self, make: Callable[[Any], Patch], module: ModuleType) -> None:
        try:
            patch = make(module)
            patch.install()
        except Exception as error:  # noqa: BLE001  runs inside an import of the program's
            name, why = module.__name__, describe(error)
            _log.warning("Model requests over %s are not counted: %s", name, why)
            return
        self._patches.append(patch)


def _of_urllib3(module: Any) -> Patch:
    def wrap(original: Function, live: Live) -> Function:
        def urlopen(pool: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
            if live():
                check_request(partial(_urllib3_post, pool, method, url), _URLLIB3)
            return original(pool, method, url, *args, **options)

        return urlopen

    owner = module.HTTPConnectionPool
    return Patch(module, owner, "urlopen", wrap, parameters=("method", "url"))


def _of_urllib(module: Any) -> Patch:
    def wrap(original: Function, live: Live) -> Function:
        def open_(opener: Any, fullurl: Any, data: Any = None, *args: Any, **more: Any) -> Any:
            if live():
                check_request(partial(_urllib_post, fullurl, data), _URLLIB)
            return original(opener, fullurl, data, *args, **more)

        return open_

    owner = module.OpenerDirector
    return Patch(module, owner, "open", wrap, parameters=("fullurl", "data"))


def _of_aiohttp(module: Any) -> Patch:
    def wrap(original: Function, live: Live) -> Function:
        def request(session: Any, method: str, str_or_url: Any, **options: Any) -> Any:
            if live() and active() is not None:
                check_request(partial(_aiohttp_post, session, method, str_or_url), _AIOHTTP)
            return original(session, method, str_or_url, **options)

        return request

    owner = module.ClientSession
    return Patch(module, owner, "_request", wrap, parameters=("method", "str_or_url"))


LIBRARIES: Final[Mapping[str, Callable[[Any], Patch]]] = {
    "urllib3.connectionpool": _of_urllib3,
    "urllib.request": _of_urllib,
    "aiohttp.client": _of_aiohttp,
}
"""By module, what makes the patch of its function that sends requests."""


def _urllib3_post(pool: Any, method: str, url: str) -> str | None:
    """Return the URL of a POST; a pool gets only the path, or for a proxy the whole URL."""
    if method.upper() != "POST":
        return None
    if not url.startswith("/"):
        return url
    host = f"[{pool.host}]" if ":" in pool.host else pool.host
    return f"{pool.scheme}://{host}:{pool.port}{url}"


def _urllib_post(given: Any, data: Any) -> str | None:
    if isinstance(given, str):
        return given if data is not None else None
    stated = getattr(given, "method", None)
    method = "POST" if data is not None and stated is None else given.get_method()
    return given.full_url if method == "POST" else None


def _aiohttp_post(session: Any, method: str, given: Any) -> str | None:
    """Return the URL of a POST, with the session's base URL if it has one."""
    if method.upper() != "POST":
        return None
    build = getattr(session, "_build_url", None)
    return str(build(given) if build is not None else given)
