"""The steps from one schema to the next, run by alembic when an older database is opened."""
