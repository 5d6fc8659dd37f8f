"""The tables of the first version.

Bodies are records in msgpack, which PostgreSQL would compress in vain: EXTERNAL spares the server
that work. Bodies of spans up to 8 kB stay in the table.
"""

from __future__ import annotations

from typing import Final

from alembic import op

revision = "0001"
down_revision = None

_STATEMENTS: Final = (
    """
    CREATE TABLE agl_rollouts (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id text COLLATE "C" NOT NULL UNIQUE,
        run_id text COLLATE "C" NOT NULL,
        group_id text COLLATE "C" NOT NULL,
        mode text COLLATE "C" NOT NULL,
        status text COLLATE "C" NOT NULL,
        consumed boolean NOT NULL,
        body bytea NOT NULL
    )
    """,
    "CREATE INDEX agl_rollouts_queued ON agl_rollouts (number) WHERE status = 'queued'",
    "CREATE INDEX agl_rollouts_run ON agl_rollouts (run_id, id)",
    "CREATE INDEX agl_rollouts_group ON agl_rollouts (group_id, id)",
    """
    CREATE TABLE agl_attempts (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id text COLLATE "C" NOT NULL UNIQUE,
        rollout bigint NOT NULL,
        running boolean NOT NULL,
        due_at double precision NOT NULL,
        digest bytea NOT NULL,
        body bytea NOT NULL
    )
    """,
    "CREATE INDEX agl_attempts_rollout ON agl_attempts (rollout)",
    "CREATE INDEX agl_attempts_due ON agl_attempts (due_at) WHERE running",
    """
    CREATE TABLE agl_spans (
        attempt bigint NOT NULL,
        id text COLLATE "C" NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (attempt, id)
    ) WITH (toast_tuple_target = 8160)
    """,
    "CREATE TABLE agl_resources (version bigint PRIMARY KEY, body bytea NOT NULL)",
    "CREATE TABLE agl_lead (one smallint PRIMARY KEY CHECK (one = 1), body bytea NOT NULL)",
    """
    CREATE TABLE agl_writers (
        id text COLLATE "C" PRIMARY KEY,
        number bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT now()
    ) WITH (fillfactor = 20)
    """,
    "ALTER TABLE agl_rollouts ALTER body SET STORAGE EXTERNAL",
    "ALTER TABLE agl_attempts ALTER body SET STORAGE EXTERNAL",
    "ALTER TABLE agl_spans ALTER body SET STORAGE EXTERNAL",
)


def upgrade() -> None:
    """Create the tables."""
    for statement in _STATEMENTS:
        op.execute(statement)
