"""Reading a folder that somebody else wrote: names in NFC, links only inside the bundle, no special files, no surprises.

Nothing here knows what a bundle means. Whatever is wrong is noted, and the walk goes on, so that everything is told at once.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar, cast

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.reading import MAX_DEPTH, parse_json, parse_toml, read_file
from agent_env.documents.updates import Json
from agent_env.errors import Problem, ProblemsError

T = TypeVar("T")

LEAVINGS = frozenset({".DS_Store", "Thumbs.db", "desktop.ini", "__pycache__"})
"""What systems and tools leave in folders; never content."""
_UNUSABLE = {
    "broken": "a link that leads nowhere, or in a circle",
    "outside": "a link that leads out of the {0}; a {0}'s links stay inside its folder",
    "special": "neither a file nor a folder",
}
NodeKind = Literal["file", "folder", "special", "broken", "outside"]


def fold(name: str) -> str:
    """The form in which two names of one folder must differ: NFC, without case."""
    return unicodedata.normalize("NFC", name).casefold() if not name.isascii() else name.lower()


def nfc(name: str) -> str:
    """The form in which names are kept."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


@dataclass(frozen=True, slots=True)
class Node:
    """One name in a folder, with links followed."""

    name: str
    """In NFC."""
    path: Path
    """As it is spelled on the disk."""
    kind: NodeKind
    link: bool = False


@dataclass
class Notes:
    """What was found wrong, and what is worth a word."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def problem(self, file: str, message: str, *, path: str | None = None, hint: str | None = None) -> None:
        """Notes a problem of a file."""
        self.problems.append(Problem(message, file=file, path=path, hint=hint))

    def warning(self, file: str, message: str, *, path: str | None = None, hint: str | None = None) -> None:
        """Notes something that does not stop anything."""
        self.warnings.append(Problem(message, file=file, path=path, hint=hint))


class Folder:
    """A bundle's root, through which all its files are read.

    Args:
        root: Resolved, existing.
        notes: Receives what is wrong.
        limits: `bundle_file_bytes` bounds what is read into memory.
        what: What the folder is, as messages say it.
    """

    def __init__(self, root: Path, notes: Notes, limits: Limits = DEFAULT_LIMITS, *, what: str = "bundle") -> None:
        self.root = root
        self._what = what
        self.notes = notes
        self._limit_bytes = limits.bundle_file_bytes
        self._identity = _identity(root.stat())

    def relative(self, path: Path) -> str:
        """A path as messages spell it: relative to the root, POSIX, NFC."""
        text = os.fspath(path)
        prefix = os.fspath(self.root)
        text = text[len(prefix) :].lstrip("/") if text.startswith(prefix) else text
        return text if text.isascii() else nfc(text.encode("utf-8", "backslashreplace").decode())

    def list(self, folder: Path, *, dotted: bool = False) -> list[Node]:
        """The names in a folder, sorted, leavings left out; broken, escaping and special ones are noted and left out too.

        Args:
            folder: Inside the root.
            dotted: Whether names that start with a dot count.
        """
        try:
            with os.scandir(folder) as entries:
                found = [
                    self._node(entry) for entry in entries if entry.name not in LEAVINGS and (dotted or not entry.name.startswith("."))
                ]
        except OSError as error:
            self.notes.problem(self.relative(folder) or ".", f"the folder can't be read: {error.strerror}")
            return []
        found.sort(key=lambda node: node.name)
        return [node for node in found if self._usable(node)]

    def _node(self, entry: os.DirEntry[str]) -> Node:
        name, path = nfc(entry.name), Path(entry.path)
        if not entry.is_symlink():
            if entry.is_file():
                return Node(name, path, "file")
            return Node(name, path, "folder" if entry.is_dir() else "special")
        try:
            mode = path.stat().st_mode
        except OSError:
            return Node(name, path, "broken", link=True)
        if not self._inside(entry.path):
            return Node(name, path, "outside", link=True)
        kind: NodeKind = "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "special"
        return Node(name, path, kind, link=True)

    def _usable(self, node: Node) -> bool:
        wrong = _UNUSABLE.get(node.kind)
        if wrong is None and not node.name.isascii() and _undecodable(node.name):
            wrong = "the name is not UTF-8"
        if wrong:
            self.notes.problem(self.relative(node.path), wrong.format(self._what))
        return wrong is None

    def _inside(self, path: str) -> bool:
        """Whether a link's target is in the root. Compared by identity, so that another spelling of the root is still the root."""
        target = Path(os.path.realpath(path))
        return any(_identity(parent.stat()) == self._identity for parent in (target, *target.parents))

    def walk(self, folder: Path) -> dict[str, Path]:
        """All files below a folder: POSIX path in NFC, sorted → the file. Dot files count, leavings don't."""
        found: dict[str, Path] = {}
        above = tuple(_identity(parent.stat()) for parent in (folder, *folder.parents) if parent.is_relative_to(self.root))
        for name, path in self._walk(folder, "", above):
            if name in found:
                self.notes.problem(self.relative(path), "two names here are the same once their accents are composed")
            found[name] = path
        return dict(sorted(found.items()))

    def _walk(self, folder: Path, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, Path]]:
        for node in self.list(folder, dotted=True):
            name = prefix + node.name
            if node.kind == "file":
                yield name, node.path
                continue
            identity = _identity(node.path.stat())
            if len(above) > MAX_DEPTH:
                self.notes.problem(self.relative(node.path)[:200], f"folders nest deeper than {MAX_DEPTH} levels")
            elif identity in above:
                self.notes.problem(self.relative(node.path), "a link to a folder that it is in: the walk would never end")
            else:
                yield from self._walk(node.path, f"{name}/", (*above, identity))

    def read(self, path: Path) -> bytes | None:
        """A regular file's bytes, or None when something is wrong with it (noted)."""
        return self._noted(path, lambda: read_file(path, limit_bytes=self._limit_bytes))

    def json(self, path: Path) -> Json | None:
        """A strict JSON document; None when it can't be read. What is wrong is noted."""
        data = self.read(path)
        return None if data is None else self._noted(path, lambda: parse_json(data, source=self.relative(path)))

    def toml(self, path: Path) -> dict[str, Json] | None:
        """A TOML document; None when something is wrong (noted)."""
        data = self.read(path)
        return None if data is None else self._noted(path, lambda: parse_toml(data, source=self.relative(path)))

    def _noted(self, path: Path, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except ProblemsError as error:
            self.notes.problems += [replace(problem, file=self.relative(path)) for problem in error.problems]
            return cast("T | None", error.readable)


def _undecodable(name: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in name)


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino
