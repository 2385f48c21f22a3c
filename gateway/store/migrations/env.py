"""What Alembic runs: on the connection it is handed, in the transaction that is open there."""

from __future__ import annotations

from alembic import context

from gateway.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=False,  # the caller's transaction holds everything
)
context.run_migrations()
