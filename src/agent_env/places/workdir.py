"""A work folder that an image's user can work in: engines make the folder of a WORKDIR for root, whoever the image's user is (FI-15)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath

from agent_env.errors import TransferError
from agent_env.places.place import Entry, FileKind, Place, Upload

_OTHERS_WRITE = 0o002
_ROOT = frozenset({"", "0", "root"})


def is_concerned(user: str, folder: str) -> bool:
    """The image's user is not root, and its work folder is not the root of everything, which nobody else should have."""
    return user.partition(":")[0] not in _ROOT and folder.strip("/") != ""


async def hand_over(place: Place, folder: PurePosixPath, *, owner: str) -> bool:
    """Gives an empty folder of root's to the place's user, as it would have been had the user made it. Before anything runs there.

    A folder that holds something stays whose it is: what is in it may be meant to be out of the user's reach. So does what is mounted, and
    what a read-only root holds.

    Args:
        place: Nothing has been started in it yet.
        folder: The image's work folder.
        owner: The image's user.

    Returns:
        Whether it has another owner now.
    """
    found = (await place.stat([folder], follow=False))[folder]
    if not isinstance(found, Entry) or found.kind is not FileKind.DIRECTORY or found.uid != 0 or found.mode & _OTHERS_WRITE:
        return False
    async for _ in place.walk(folder):
        return False
    with suppress(TransferError):
        await place.remove([folder])
        await place.put([Upload(folder, None, found.mode)], owner=owner)
        return True
    return False
