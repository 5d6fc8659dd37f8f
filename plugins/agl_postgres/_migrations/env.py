"""What alembic runs: the migrations, on the connection that `agl_postgres._schema` gives."""

from __future__ import annotations

from alembic import context

from agl_postgres._schema import VERSIONS

connection = context.config.attributes["connection"]
context.configure(connection=connection, version_table=VERSIONS)
with context.begin_transaction():
    context.run_migrations()
