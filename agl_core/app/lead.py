"""The lease that makes one trainer the only trainer of a store."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

from agl_core import waits
from agl_core.errors import LeadHeldError, StoreError
from agl_core.interfaces import StoreLifecycle

_log = logging.getLogger(__name__)

_RENEWALS_PER_LEASE: Final = 3
_LOOKS_PER_LEASE: Final = 30
_PROCESSES: Final = Path("/proc/self/ns/pid")
"""Linux: the namespace in which process ids are valid."""


@asynccontextmanager
async def leading(
    store: StoreLifecycle, *, lease_s: float
) -> AsyncGenerator[asyncio.Task[None], None]:
    """Hold the store's lease inside; yield a task that ends only if the lease is lost.

    The lease of a process that is known to be dead is taken immediately. Otherwise this waits: a
    running trainer renews its lease, the lease of a dead one expires.

    Args:
        store: Open until this context has ended.
        lease_s: Duration of the lease; a dead trainer blocks others for that long.

    Raises:
        LeadHeldError: another trainer has the lease and renews it.
    """
    instance = new_instance()
    await _take(store, instance, lease_s)
    renewing = asyncio.create_task(_renew(store, instance, lease_s), name="agl-lead")
    try:
        yield renewing
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        try:
            await asyncio.wait_for(store.lead(instance, lease_s=0), waits.LEAD_S)
        except (TimeoutError, StoreError):
            _log.warning("The store's lead could not be given back; it lapses", exc_info=True)


def new_instance() -> str:
    """Return ``<host>-<process id>-<random>``; the last part begins with `_processes`."""
    return f"{socket.gethostname()}-{os.getpid()}-{_processes()}{secrets.token_hex(4)}"


async def _take(store: StoreLifecycle, instance: str, lease_s: float) -> None:
    first: LeadHeldError | None = None
    while True:
        try:
            await store.lead(instance, lease_s=lease_s)
        except LeadHeldError as error:
            if first is None:
                first = error
                if _is_dead(error.holder):
                    _log.warning("Trainer %s is dead: taking its place", error.holder)
                    await store.lead(error.holder, lease_s=0)
                    continue
                _log.warning(
                    "Trainer %s leads the store: waiting to see whether it is alive", error.holder
                )
            if error.holder != first.holder or error.until > first.until:
                raise
        else:
            return
        await asyncio.sleep(lease_s / _LOOKS_PER_LEASE)


async def _renew(store: StoreLifecycle, instance: str, lease_s: float) -> None:
    while True:
        await asyncio.sleep(lease_s / _RENEWALS_PER_LEASE)
        try:
            await store.lead(instance, lease_s=lease_s)
        except LeadHeldError:
            raise
        except StoreError:
            # If the store stays away, the run's next request to it raises.
            _log.warning("The store took no renewal of the lead", exc_info=True)


def _is_dead(instance: str) -> bool:
    """Return whether the process of an instance is known to have ended.

    If another process has got its id since, this returns False.
    """
    host, pid, last = ["", "", *instance.rsplit("-", 2)][-3:]
    here = host == socket.gethostname() and last.startswith(_processes())
    if sys.platform == "win32" or not here or not pid.isdecimal():
        return False  # on Windows, os.kill may end the process
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _processes() -> str:
    """Return four digits that differ between containers, whose host names may be equal."""
    try:
        name = str(_PROCESSES.readlink())
    except OSError:
        name = ""
    return blake2b(name.encode(), digest_size=2).hexdigest()
