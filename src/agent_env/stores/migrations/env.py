"""alembic's entry: migrates the connection that `stores.revision` hands over, inside that connection's transaction."""

from __future__ import annotations

from alembic import context

from agent_env.stores.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
    transactional_ddl=False,  # the caller's transaction holds everything: one commit, or nothing
)
context.run_migrations()
