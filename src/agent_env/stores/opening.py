"""Opens the memory that a configuration names. Every face of agent-env goes through here, so they all find the same files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_env.config.checks import is_reference
from agent_env.stores.database import Database
from agent_env.stores.documents import Documents
from agent_env.stores.identity import identity_of
from agent_env.stores.journal import Journal
from agent_env.stores.objects import Objects
from agent_env.stores.secrets import Secrets

if TYPE_CHECKING:
    from agent_env.config import Config

OBJECTS_FOLDER = "objects"
SECRETS_FILE = "secrets.json"


@dataclass(frozen=True)
class Memory:
    """Everything that outlives a process."""

    db: Database
    documents: Documents
    objects: Objects
    journal: Journal
    secrets: Secrets
    config: Config
    """What they were opened by."""


@contextmanager
def open_memory(config: Config, *, seen: Callable[[str], object] | None = None) -> Iterator[Memory]:
    """The stores of an installation, closed when the block ends.

    Args:
        config: Names the state folder and the run database.
        seen: Told every secret before it is handed out, so that it can be redacted.

    Raises:
        NotFoundError: The database's URL is a reference without a value.
        StorageError: The database can't be reached or used, or the folder's identity is damaged.
    """
    identity_of(config.state_root)  # before anything else is made there: a folder in use without one is from before there were identities
    secrets = Secrets(config.state_root / SECRETS_FILE, seen=seen)
    url = secrets.resolve(config.database_url).reveal() if is_reference(config.database_url) else config.database_url
    if url.startswith("sqlite:") and config.synchronous.upper() == "FULL" and "?" not in url:
        url += "?synchronous=full"
    with Database.open(url, limits=config.limits) as db:
        objects = Objects(config.state_root / OBJECTS_FOLDER, db)
        yield Memory(db, Documents(db), objects, Journal(db, objects), secrets, config)
