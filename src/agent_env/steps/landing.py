"""Where loaded files land: below the folder that they are for, whatever links an image or an agent has put there."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from agent_env.errors import TaskError
from agent_env.places import Entry, FileKind, Place, Upload

_MOST_LINKS = 40
"""As the kernel (ELOOP)."""


async def landed(place: Place, uploads: Iterable[Upload], folders: Mapping[PurePosixPath, PurePosixPath], *, named: bool) -> list[Upload]:
    """The uploads as they are to be written: links that stay within their folder are gone through here, and none is followed later.

    Where a step names the folder, that may itself be a link: it says where the files go. One that nobody named may not. One round trip
    where there are no links.

    Args:
        place: Where files will be written.
        uploads: The files.
        folders: File → the folder that it is loaded into.
        named: The step says which folder.

    Raises:
        TaskError: A link leads out, or in a circle; names it and where it leads.
    """
    ways = {path: path.parent for path in folders}
    links: dict[PurePosixPath, str | None] = {}
    for _ in range(_MOST_LINKS):
        above = {path: _between(way, folders[path], named) for path, way in ways.items()}
        if unknown := {folder for way in above.values() for folder in way} - links.keys():
            found = await place.stat(sorted(unknown), follow=False)
            links |= {
                path: str(entry.target) if isinstance(entry, Entry) and entry.kind is FileKind.LINK else None
                for path, entry in found.items()
            }
        turns = {path: next((folder for folder in way if links[folder] is not None), None) for path, way in above.items()}
        for path, link in turns.items():
            if link is not None:
                ways[path] = _landing(link, str(links[link]), folders[path]) / ways[path].relative_to(link)
        if not any(turns.values()):
            return [_beneath(upload, ways[upload.path], folders[upload.path], named) for upload in uploads]
    raise TaskError(f"the links below {', '.join(sorted({str(root) for root in folders.values()}))} never end, so nothing was loaded")


def _beneath(upload: Upload, way: PurePosixPath, root: PurePosixPath, named: bool) -> Upload:
    return replace(upload, path=way / upload.path.name, beneath=root if named else root.parent)


def _between(path: PurePosixPath, root: PurePosixPath, named: bool) -> list[PurePosixPath]:
    """The folders on the way, from the root (unless it was named) to the path itself."""
    return [above for above in (*reversed(path.parents), path) if above.is_relative_to(root) and (above != root or not named)]


def _landing(link: PurePosixPath, target: str, root: PurePosixPath) -> PurePosixPath:
    lands = PurePosixPath(posixpath.normpath(link.parent / target))
    if link != root and lands.is_relative_to(root):
        return lands
    where = "is" if link == root else f"leads out of {root}: it is"
    raise TaskError(
        f"{link} {where} a link to {target!r}, so nothing was loaded",
        concerns=str(link),
        hint="remove the link, or name where the files are meant to go in destination_path",
    )
