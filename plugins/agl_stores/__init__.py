"""The stores of runs: find the one of a directory, a file or an address, and iterate over its records.

A library for plugins that read or serve the records of a run; it registers no hooks.
"""

from agl_stores._address import (
    StoreAddress,
    has_scheme,
    locate_store,
    make_store_at,
    of_file,
    open_for_reading,
    store_at,
    store_file,
)
from agl_stores._paging import attempt_records, rollout_pages

__all__ = [
    "StoreAddress",
    "attempt_records",
    "has_scheme",
    "locate_store",
    "make_store_at",
    "of_file",
    "open_for_reading",
    "rollout_pages",
    "store_at",
    "store_file",
]
