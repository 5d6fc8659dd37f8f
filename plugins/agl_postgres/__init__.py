"""The store ``postgres``: the records of runs in a PostgreSQL database.

::

    [store]
    name = "postgres"
    url = "postgresql://user:password@host:5432/database"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_postgres._options import PostgresOptions as PostgresOptions
    from agl_postgres._store import PostgresStore as PostgresStore
    from agl_postgres._store import make_store as make_store
else:
    __getattr__, __dir__, __all__ = late(__name__)
