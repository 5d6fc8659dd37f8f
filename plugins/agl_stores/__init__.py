"""Runs and their stores: find a run, its best checkpoint or a store, read and copy its records.

A library for plugins and trainers that read what a run has written; it registers no hooks.
"""

from agl_stores._address import (
    StoreAddress,
    bare_store_at,
    has_scheme,
    locate_store,
    make_store_at,
    new_store,
    of_file,
    open_for_reading,
    store_at,
    store_file,
)
from agl_stores._copy import CopiedKind, copy_store
from agl_stores._keys import key, unkey
from agl_stores._layer import LayerOptions, StoreLayer
from agl_stores._paging import attempt_records, rollout_pages
from agl_stores._runs import best_checkpoint, is_checkpoint, run_directory

__all__ = [
    "CopiedKind",
    "LayerOptions",
    "StoreAddress",
    "StoreLayer",
    "attempt_records",
    "bare_store_at",
    "best_checkpoint",
    "copy_store",
    "has_scheme",
    "is_checkpoint",
    "key",
    "locate_store",
    "make_store_at",
    "new_store",
    "of_file",
    "open_for_reading",
    "rollout_pages",
    "run_directory",
    "store_at",
    "store_file",
    "unkey",
]
