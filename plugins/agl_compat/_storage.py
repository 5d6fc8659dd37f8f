"""``LightningStore()``, ``AGL_STORAGE`` and ``DATABASE_URL`` as the store of a run."""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import urlsplit

from agl_compat._names import renamed
from agl_compat._services import database_settings
from agl_core.app import load_plugins
from agl_core.errors import ConfigError
from agl_core.store import store_schemes, without_password

VARIABLE: Final = "AGL_STORAGE"


class LightningStore:
    """The store of a run: by default the file ``store.db`` in the run's directory."""

    def __init__(self, url: str | None = None) -> None:
        """Choose a store.

        Args:
            url: Address of a store, a directory for runs, or None for that in ``AGL_STORAGE``, else
                in ``DATABASE_URL``.

        Raises:
            ConfigError: no plugin serves the scheme of the address.
        """
        renamed("LightningStore()", "store.name and store.url of a run file")
        self.url = url
        self._settings = storage_settings(url)

    def settings(self) -> dict[str, Any]:
        """Return the settings of a run with this store."""
        return dict(self._settings)


class InMemoryLightningStore(LightningStore):
    """The store ``memory``, whose records end with the process."""

    def __init__(self) -> None:
        """Choose the store."""
        super().__init__()
        self._settings: dict[str, Any] = {"store.name": "memory"}


def storage_settings(url: str | None = None) -> dict[str, Any]:
    """Return the settings for an address, by default that in ``AGL_STORAGE`` or ``DATABASE_URL``.

    They are empty without one. A directory is that of runs. An address is the ``url`` of the store that serves its scheme.

    Raises:
        ConfigError: no plugin serves the scheme.
    """
    given = url if url is not None else os.environ.get(VARIABLE, "")
    if not given:
        return database_settings() if url is None else {}
    if url is None:
        renamed(VARIABLE, "store.url and directory of a run file")
    parts = urlsplit(given)
    if parts.scheme == "file" or "://" not in given:
        return {"directory": parts.path if parts.scheme == "file" else given}
    schemes = store_schemes(load_plugins())
    for name, served in schemes.items():
        if parts.scheme in served:
            return {"store.name": name, "store.url": given}
    known = sorted({scheme for served in schemes.values() for scheme in served})
    raise ConfigError(
        f"{VARIABLE if url is None else 'LightningStore'} is {without_password(given)!r}, but no "
        f"plugin serves {parts.scheme}://: use a directory, or one of "
        f"{', '.join(f'{scheme}://' for scheme in known) or 'no scheme'}; agl plugins lists the "
        f"stores"
    )
