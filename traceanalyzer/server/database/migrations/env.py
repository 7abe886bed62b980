"""What alembic runs: the revisions, on the connection and in the transaction that the caller holds."""

from __future__ import annotations

from alembic import context

from traceanalyzer.server.database.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite's DDL is transactional; alembic does not count on it because Python's driver used to commit before it.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
