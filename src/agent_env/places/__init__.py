"""Places: the contract of where commands run and files live, the placement table, and endpoints."""

from agent_env.places.endpoint import Endpoint, Published, View
from agent_env.places.place import (
    RESULT_VARIABLE,
    ROOT_USER,
    Command,
    Completed,
    Ending,
    Entry,
    FileKind,
    LedgerEntry,
    Missing,
    Place,
    PlaceKind,
    Process,
    Upload,
)
from agent_env.places.placement import Deed, Recorded, Shape, TargetKind, Where, place_of

__all__ = [
    "RESULT_VARIABLE",
    "ROOT_USER",
    "Command",
    "Completed",
    "Deed",
    "Ending",
    "Endpoint",
    "Entry",
    "FileKind",
    "LedgerEntry",
    "Missing",
    "Place",
    "PlaceKind",
    "Process",
    "Published",
    "Recorded",
    "Shape",
    "TargetKind",
    "Upload",
    "View",
    "Where",
    "place_of",
]
