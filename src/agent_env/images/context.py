"""Build contexts: what a Dockerfile is built from, read once, with a digest that is the same on every machine."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import stat
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_env.defaults import MIB
from agent_env.errors import Problem, ProblemsError
from agent_env.images.dockerignore import IGNORE_FILE, Ignore
from agent_env.wording import file_kind

SCHEME = 1
"""Of `source_digest`: a change of what it covers is another scheme (reference)."""
LEAVINGS = frozenset({".DS_Store", "Thumbs.db", "desktop.ini", "__pycache__"})
"""What operating systems and Python leave behind: never part of a context (reference)."""
DEFAULT_DOCKERFILE = "Dockerfile"
_CHUNK = MIB
_MOST_LINKS = 40
"""As the kernel (ELOOP)."""
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or link of a context."""

    name: str
    """Below the context's root, written with `/`, in composed Unicode (NFC)."""
    path: Path
    mode: int
    """0755 when its owner may execute it, else 0644: what Git keeps, and what does not differ between machines."""
    size: int
    sha256: str | None = None
    """Of a file."""
    target: str | None = None
    """Of a link, as it is written; links are kept as links and never followed."""

    @property
    def content(self) -> str:
        """What the digest covers."""
        return f"link:{self.target}" if self.target is not None else str(self.sha256)


@dataclass(frozen=True, slots=True)
class BuildContext:
    """A folder's files as a build sees them."""

    root: Path
    dockerfile: str
    """Its path below the root."""
    entries: tuple[Entry, ...]
    """Sorted by name."""

    @classmethod
    def of(cls, root: Path, dockerfile: str = DEFAULT_DOCKERFILE, *, leave_out: frozenset[str] = frozenset()) -> BuildContext:
        """Reads a folder, honouring `<Dockerfile>.dockerignore`, else `.dockerignore`.

        The Dockerfile and the ignore file are always part of it, and so is what they are links to. Empty folders are not: no digest of
        contents could tell them. It blocks while it reads every file once.

        Args:
            root: The folder.
            dockerfile: The Dockerfile's path below it.
            leave_out: Names directly below the root that are no part of it.

        Raises:
            ProblemsError: Everything that can't be part of a context, all at once.
        """
        return _Reading(root, posixpath.normpath(dockerfile), leave_out).context()

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.size for entry in self.entries)

    def source_digest(self, platform: str | None) -> str:
        """64 hexadecimal digits: sha256 of the canonical JSON of scheme, Dockerfile, platform and every entry's name, mode and content."""
        described = {
            "scheme": SCHEME,
            "dockerfile": self.dockerfile,
            "platform": platform,
            "entries": [[entry.name, f"{entry.mode:04o}", entry.content] for entry in self.entries],
        }
        return hashlib.sha256(_CANONICAL.encode(described).encode()).hexdigest()

    def dockerfile_text(self) -> str:
        """The Dockerfile's own text.

        Raises:
            ProblemsError: It can't be read.
        """
        try:
            own = next((entry.path for entry in self.entries if entry.name == self.dockerfile), None)
            return (own or self.root / self.dockerfile).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ProblemsError([Problem(f"can't be read: {error.strerror}", self.dockerfile)]) from error


@dataclass
class _Reading:
    """One pass over a folder."""

    root: Path
    dockerfile: str
    leave_out: frozenset[str] = frozenset()
    problems: list[Problem] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    ignore: Ignore = field(default_factory=Ignore)

    def context(self) -> BuildContext:
        if not self.root.is_dir():
            raise ProblemsError([Problem("is no folder, so nothing can be built from it", str(self.root))])
        kept = self._always_kept()
        self._folder(self.root, "")
        for name in sorted(kept - self.entries.keys()):
            self._file(self.root / name, name)
        if self.problems:
            raise ProblemsError(self.problems, summary=f"{self.root} can't be built from")
        return BuildContext(self.root, self.dockerfile, tuple(self.entries[name] for name in sorted(self.entries)))

    def _always_kept(self) -> set[str]:
        if posixpath.isabs(self.dockerfile) or self.dockerfile.startswith("../") or self.dockerfile in {".", ".."}:
            self._problem(self.dockerfile, "is outside of the build context", "give the Dockerfile's path below the context's folder")
            return set()
        if not (self.root / self.dockerfile).is_file():
            hint = "name it with --file" if self.dockerfile == DEFAULT_DOCKERFILE else None
            self._problem(self.dockerfile, "does not exist" if not _exists(self.root / self.dockerfile) else "is no file", hint)
            return set()
        kept = self._with_targets(self.dockerfile)
        for name in (f"{self.dockerfile}{IGNORE_FILE}", IGNORE_FILE):
            if (self.root / name).is_file():
                kept |= self._with_targets(name)
                self._read_ignore(name)
                break
        return kept

    def _read_ignore(self, name: str) -> None:
        try:
            text = (self.root / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self._problem(name, f"can't be read: {_said(error)}")
            return
        self.ignore, found = Ignore.parse(text, file=name)
        self.problems += found

    def _with_targets(self, name: str) -> set[str]:
        """A file, and every link and file that it stands for."""
        names, at = {name}, name
        for _ in range(_MOST_LINKS):
            path = self.root / at
            if not path.is_symlink():
                return names
            at = posixpath.normpath(posixpath.join(posixpath.dirname(at), str(path.readlink())))
            if at.startswith(("/", "../")):
                self._problem(name, f"is a link to {str(path.readlink())!r}, which is outside of the build context")
                return set()
            names.add(at)
        self._problem(name, "is a link that leads in a circle")
        return set()

    def _folder(self, folder: Path, prefix: str) -> None:
        try:
            found = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            self._problem(prefix.rstrip("/") or ".", f"can't be read: {_said(error)}")
            return
        for entry in found:
            if entry.name in LEAVINGS or (not prefix and entry.name in self.leave_out):
                continue
            name = self._composed(prefix + entry.name)
            if name is None:
                continue
            ignored = self.ignore.ignores(name)
            if entry.is_dir(follow_symlinks=False):
                if not ignored or self.ignore.may_take_back_below(name):
                    self._folder(Path(entry.path), f"{name}/")
            elif not ignored:
                self._file(Path(entry.path), name)

    def _composed(self, name: str) -> str | None:
        try:
            name.encode()
        except UnicodeEncodeError:
            self._problem(ascii(name), "has a name that is not UTF-8", "rename it, or list it in .dockerignore")
            return None
        return unicodedata.normalize("NFC", name)

    def _file(self, path: Path, name: str) -> None:
        if name in self.entries and self.entries[name].path != path:
            self._problem(name, "stands for two files, whose names differ only in how their accents are encoded", "rename one of them")
            return
        try:
            self.entries[name] = read_entry(path, name)
        except _NoFileError as error:
            self._problem(name, str(error), "list it in .dockerignore")
        except OSError as error:
            self._problem(name, f"can't be read: {_said(error)}", "list it in .dockerignore, or make it readable")

    def _problem(self, name: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(message, name, hint=hint))


class _NoFileError(ValueError):
    """Something that no archive of files can hold."""


def read_entry(path: Path, name: str, *, told: Callable[[int], Any] | None = None) -> Entry:
    """Reads and hashes one file or link.

    Raises:
        OSError: It can't be read.
    """
    status = path.lstat()
    mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
    if stat.S_ISLNK(status.st_mode):
        return Entry(name, path, mode, 0, target=_link_text(path))
    if not stat.S_ISREG(status.st_mode):
        raise _NoFileError(f"is a {file_kind(status.st_mode)}, which no build context can hold")
    digest, size = hashlib.sha256(), 0
    for chunk in chunks_of(path):
        digest.update(chunk)
        size += len(chunk)
        if told is not None:
            told(len(chunk))
    return Entry(name, path, mode, size, sha256=digest.hexdigest())


def chunks_of(path: Path) -> Iterator[bytes]:
    """A regular file's bytes; a link in its place is refused, and a pipe is not waited for.

    Raises:
        OSError: It can't be read.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _link_text(path: Path) -> str:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        target = os.readlink(path.name, dir_fd=folder)  # unlike a `Path`, it keeps the text as it is
        target.encode()
    except UnicodeEncodeError as error:
        raise _NoFileError("is a link whose target is not UTF-8") from error
    finally:
        os.close(folder)
    return target


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _said(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8"
