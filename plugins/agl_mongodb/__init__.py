"""The store ``mongodb``: the records of runs in a MongoDB database.

::

    [store]
    url = "mongodb://user:password@host:27017/database"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_mongodb._options import MongoOptions as MongoOptions
    from agl_mongodb._store import MongoStore as MongoStore
    from agl_mongodb._store import make_store as make_store
else:
    __getattr__, __dir__, __all__ = late(__name__)
