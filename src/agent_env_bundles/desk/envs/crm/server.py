"""A register of customers and what was noted about them, in a PostgreSQL database."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import psycopg
from agent_env_sdk.environment import AgentEnvError, DataPart, Environment, add_data, environment, get_data, read_json, reset_data, tool
from psycopg.rows import dict_row
from pydantic import Field

SCHEMA = """
CREATE TABLE IF NOT EXISTS customers (name text PRIMARY KEY, city text NOT NULL);
CREATE TABLE IF NOT EXISTS notes (id bigserial PRIMARY KEY, customer text NOT NULL REFERENCES customers, text text NOT NULL);
"""
Customer = Annotated[str, Field(description="The customer's name.")]


@environment(name="crm")
class Register(Environment):
    """Customers by name."""

    async def startup(self) -> None:
        """Makes the tables."""
        with self._database() as database:
            database.execute(SCHEMA)

    def _database(self) -> psycopg.Connection[dict[str, Any]]:
        return psycopg.connect(os.environ["DATABASE_URL"], row_factory=dict_row)

    @reset_data
    def empty(self) -> None:
        """No customers."""
        with self._database() as database:
            database.execute("TRUNCATE notes, customers")

    @add_data
    def load(self, parts: list[Any]) -> None:
        """Takes {"customers": [{"name", "city"}], "notes": [{"customer", "text"}]}, all of it or none."""
        with self._database() as database:
            for part in parts:
                data = read_json(part)
                for row in data["customers"]:
                    database.execute("INSERT INTO customers (name, city) VALUES (%s, %s)", (row["name"], row["city"]))
                for row in data.get("notes", ()):
                    database.execute("INSERT INTO notes (customer, text) VALUES (%s, %s)", (row["customer"], row["text"]))

    @get_data
    def export(self) -> list[DataPart]:
        """Gives what `load` takes."""
        with self._database() as database:
            customers = database.execute("SELECT name, city FROM customers ORDER BY name").fetchall()
            notes = database.execute("SELECT customer, text FROM notes ORDER BY id").fetchall()
        return [DataPart(data={"customers": customers, "notes": notes})]

    @tool(name="{environment_name}_find", annotations={"readOnlyHint": True})
    def find(self, name: Customer) -> str:
        """Find a customer and what was noted, as JSON."""
        with self._database() as database:
            found = database.execute("SELECT name, city FROM customers WHERE name = %s", (name,)).fetchone()
            if found is None:
                raise AgentEnvError("missing", f"there is no customer {name!r}")
            rows = database.execute("SELECT text FROM notes WHERE customer = %s ORDER BY id", (name,)).fetchall()
        return json.dumps({**found, "notes": [row["text"] for row in rows]})

    @tool(name="{environment_name}_note")
    def note(self, name: Customer, text: Annotated[str, Field(description="What to note.")]) -> str:
        """Note something about a customer."""
        with self._database() as database:
            try:
                database.execute("INSERT INTO notes (customer, text) VALUES (%s, %s)", (name, text))
            except psycopg.errors.ForeignKeyViolation as error:
                raise AgentEnvError("missing", f"there is no customer {name!r}") from error
        return "noted"


if __name__ == "__main__":
    Register().serve()
