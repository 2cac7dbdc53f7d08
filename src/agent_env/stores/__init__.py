"""What outlives a process: documents, objects, secrets, and the run database with its journal.

Nothing here knows what a step or a place is: floors above record through it. Importing one class does not import the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_env.lazy import names_of

if TYPE_CHECKING:
    from agent_env.stores.batches import Batch as Batch
    from agent_env.stores.batches import ObjectRef as ObjectRef
    from agent_env.stores.connection import Connection as Connection
    from agent_env.stores.connection import Row as Row
    from agent_env.stores.database import Database as Database
    from agent_env.stores.documents import Document as Document
    from agent_env.stores.documents import Documents as Documents
    from agent_env.stores.documents import Page as Page
    from agent_env.stores.documents import digest_of as digest_of
    from agent_env.stores.installation import InstallationKey as InstallationKey
    from agent_env.stores.journal import Journal as Journal
    from agent_env.stores.ledger import Ledger as Ledger
    from agent_env.stores.ledger import LedgerRow as LedgerRow
    from agent_env.stores.objects import Freed as Freed
    from agent_env.stores.objects import Objects as Objects
    from agent_env.stores.owners import Owner as Owner
    from agent_env.stores.records import AttemptRow as AttemptRow
    from agent_env.stores.records import EventRow as EventRow
    from agent_env.stores.records import GroupRow as GroupRow
    from agent_env.stores.records import Lease as Lease
    from agent_env.stores.records import NewRun as NewRun
    from agent_env.stores.records import Resource as Resource
    from agent_env.stores.records import ResourceRow as ResourceRow
    from agent_env.stores.records import ReviewRow as ReviewRow
    from agent_env.stores.records import RunRow as RunRow
    from agent_env.stores.records import StoredRun as StoredRun
    from agent_env.stores.records import UsedDocument as UsedDocument
    from agent_env.stores.retention import live_objects as live_objects
    from agent_env.stores.secrets import Secret as Secret
    from agent_env.stores.secrets import Secrets as Secrets
    from agent_env.stores.secrets import SecretStore as SecretStore

_MODULES = {
    "batches": ("Batch", "ObjectRef"),
    "connection": ("Connection", "Row"),
    "database": ("Database",),
    "documents": ("Document", "Documents", "Page", "digest_of"),
    "installation": ("InstallationKey",),
    "journal": ("Journal",),
    "ledger": ("Ledger", "LedgerRow"),
    "objects": ("Freed", "Objects"),
    "owners": ("Owner",),
    "records": (
        "AttemptRow",
        "EventRow",
        "GroupRow",
        "Lease",
        "NewRun",
        "Resource",
        "ResourceRow",
        "ReviewRow",
        "RunRow",
        "StoredRun",
        "UsedDocument",
    ),
    "retention": ("live_objects",),
    "secrets": ("Secret", "SecretStore", "Secrets"),
}

__getattr__, __dir__ = names_of(__name__, _MODULES)
