"""Trees: walked whole, parents first, sorted, and never through a link."""

from __future__ import annotations

from itertools import pairwise
from pathlib import PurePosixPath

from agent_env.places import FileKind, Upload
from agent_env.sandboxes.conformance.bench import Bench
from agent_env.sandboxes.conformance.case import Area, equal, holds

AREA = Area("trees")
case = AREA.case

_FILES = 2000


@case("FI-07")
async def a_walk_goes_parents_first_and_follows_no_link(bench: Bench) -> None:
    """Every entry comes after its folder, sorted by name, and links are told, not entered."""
    async with bench.shared() as room:
        await room.text("mkdir -p b/y a/x out; printf 1 > a/x/f; printf 2 > b/f; printf s > out/secret; ln -s ../out a/link; ln -s / root")
        found = [entry async for entry in room.place.walk(room.folder)]
        paths = [entry.path.relative_to(room.folder) for entry in found]
        for at, path in enumerate(paths):
            parent = path.parent
            holds(parent == PurePosixPath() or parent in paths[:at], f"{parent} comes before {path}")
        siblings: dict[PurePosixPath, list[str]] = {}
        for path in paths:
            siblings.setdefault(path.parent, []).append(path.name)
        holds(all(one < two for names in siblings.values() for one, two in pairwise(names)), f"names are sorted: {siblings}")
        wanted = {"a", "a/link", "a/x", "a/x/f", "b", "b/f", "b/y", "out", "out/secret", "root"}
        equal({str(path) for path in paths}, wanted, "what is found")
        links = {str(entry.path.relative_to(room.folder)): entry.target for entry in found if entry.kind is FileKind.LINK}
        equal(links, {"a/link": "../out", "root": "/"}, "the links")


@case(patience=2)
async def a_large_tree_is_walked_whole(bench: Bench) -> None:
    """Two thousand files are all told, with their digests when they are asked for."""
    async with bench.shared() as room:
        uploads = [Upload(room.folder / f"d{n % 40}/f{n}", str(n).encode()) for n in range(_FILES)]
        await room.place.put(uploads)
        found = [entry async for entry in room.place.walk(room.folder, digest=True) if entry.kind is FileKind.FILE]
        equal(len(found), _FILES, "how many files were told")
        equal(len({entry.sha256 for entry in found}), _FILES, "how many different digests")


@case()
async def a_deep_tree_is_walked_and_removed(bench: Bench) -> None:
    """A hundred folders inside one another are walked and removed."""
    async with bench.shared() as room:
        deep = PurePosixPath(*["d"] * 100)
        await room.place.put([Upload(room.folder / deep / "f", b"x")])
        equal(len([entry async for entry in room.place.walk(room.folder)]), 101, "how many entries were told")
        await room.place.remove([room.folder / "d"])
        equal(await room.text("ls -A"), "", "what is left")


@case()
async def an_empty_folder_has_nothing_in_it(bench: Bench) -> None:
    """Walking an empty folder tells nothing and is no error."""
    async with bench.shared() as room:
        equal([entry async for entry in room.place.walk(room.folder)], [], "what is found")


@case("FI-07")
async def special_files_are_told_and_hold_nobody_up(bench: Bench) -> None:
    """Fifos are told as such, also where digests are asked for, and nothing waits for a writer."""
    async with bench.shared() as room:
        await room.text("mkfifo pipe; printf x > f")
        found = {entry.path.name: (entry.kind, entry.sha256 is not None) async for entry in room.place.walk(room.folder, digest=True)}
        equal(found, {"f": (FileKind.FILE, True), "pipe": (FileKind.OTHER, False)}, "what is found")
