"""Unpacks one layer into a folder. Whatever a layer says, nothing outside of the folder is read, written or followed."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import math
import os
import posixpath
import shutil
import stat
import subprocess
import tarfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from agent_env.defaults import MIB, Limits
from agent_env.errors import StorageError, TransferError, UnsupportedError
from agent_env.images.oci.sources import Piece
from agent_env.images.oci.tree import KEPT_ATTRIBUTES, Tree

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_RESERVED = ".wh..wh."
"""What AUFS kept for itself."""
_XATTR = "SCHILY.xattr."
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPED = b"\x2a\x4d\x18"
"""What follows the first byte, 50 to 5f, of a frame without content (RFC 8878, 3.1.2): programs that pack in parallel begin with one."""
_MOMENTS = range(0, 1 << 63)
"""Nanoseconds of the Unix epoch that a file can be of; engines give a file of any other moment the first one."""


class StoppedError(Exception):
    """Whoever waited for it has gone."""


@dataclass
class Unpacked:
    """What a layer holds beside files."""

    bytes: int = 0
    entries: int = 0
    whiteouts: list[str] = field(default_factory=list)
    """Paths of lower layers that this one removes."""
    opaque: list[str] = field(default_factory=list)
    """Folders of which nothing of lower layers is left."""
    skipped: list[str] = field(default_factory=list)
    """Devices that this user can't make, and such."""
    owners: bool = True
    """Owners are as the layer says; else everything belongs to this user, which a user namespace shows as root."""


def unpack(piece: Piece, into: Path, diff_id: str, *, limits: Limits, stop: threading.Event | None = None) -> Unpacked:
    """Unpacks a layer, compressed by gzip, zstd or not at all.

    Args:
        piece: The layer's bytes.
        into: An empty folder.
        diff_id: The digest of the layer, unpacked; verified.
        limits: `image_layer_bytes`, `image_layer_entries`.
        stop: Checked often: when it is set the work ends with `StoppedError`.

    Raises:
        TransferError: It is not what its digest says, or is cut off.
        UnsupportedError: It holds what no layer may: a name that leads outside, a number that is too large, more than the limits allow.
        StorageError: It can't be written.
    """
    work = _Unpacking(into, limits, stop or threading.Event())
    try:
        with piece.open() as raw, _decompressed(raw) as plain:
            hashed = _Hashed(plain, diff_id, work.check)
            with tarfile.open(fileobj=io.BufferedReader(hashed, MIB), mode="r|", bufsize=MIB, errorlevel=1) as archive:
                work.run(archive)
            hashed.drain()
            if hashed.digest != diff_id:
                raise TransferError(f"a layer is {hashed.digest} where it should be {diff_id}", concerns=diff_id)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TransferError(f"the layer {diff_id} can't be unpacked: {error}", concerns=diff_id) from error
    except OSError as error:
        raise StorageError(f"the layer {diff_id} can't be unpacked: {error.strerror or error}", concerns=str(into)) from error
    except (OverflowError, ValueError) as error:  # an owner or a device of more bits than there are, a name with a zero in it
        raise UnsupportedError(f"the layer {diff_id} holds what no file can have: {error}", concerns=diff_id) from error
    return work.report


class _Unpacking:
    def __init__(self, into: Path, limits: Limits, stop: threading.Event) -> None:
        self.report = Unpacked(owners=os.geteuid() == 0)
        self._limits = limits
        self._stop = stop
        self._tree = Tree(into)
        self._folders: dict[str, tarfile.TarInfo] = {}

    def check(self) -> None:
        """Ends the work when nobody waits for it any more."""
        if self._stop.is_set():
            raise StoppedError

    def run(self, archive: tarfile.TarFile) -> None:
        """Every member, then the folders' own facts, which their contents would change."""
        try:
            for member in archive:
                self.check()
                vars(archive)["members"].clear()  # of no use in a stream, and it would hold millions
                self._count(member)
                self._member(archive, member)
            for name, member in sorted(self._folders.items(), reverse=True):
                self._finish_folder(name, member)
        finally:
            self._tree.close()

    def _count(self, member: tarfile.TarInfo) -> None:
        self.report.entries += 1
        self.report.bytes += member.size
        if self.report.bytes > self._limits.image_layer_bytes:
            raise UnsupportedError(f"a layer holds more than {self._limits.image_layer_bytes} bytes", hint="raise image_layer_bytes")
        if self.report.entries > self._limits.image_layer_entries:
            raise UnsupportedError(f"a layer holds more than {self._limits.image_layer_entries} files", hint="raise image_layer_entries")

    def _member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts:
            if member.isdir():
                self._folders["."] = member
            return
        name, leaf = "/".join(parts), parts[-1]
        if any(part.startswith(_RESERVED) for part in parts if part != OPAQUE):
            return
        if leaf.startswith(WHITEOUT):
            self._whiteout(parts[:-1], leaf)
            return
        if member.isdir():
            self._tree.make_folder(parts)
            self._folders[name] = member
            return
        parent = self._tree.parent(parts, make=True)
        self._tree.clear(parent, leaf)
        match member.type:
            case tarfile.SYMTYPE:
                os.symlink(member.linkname, leaf, dir_fd=parent)
                self._facts_of_link(parent, leaf, member)
            case tarfile.LNKTYPE:
                self._hard_link(parent, leaf, member)
            case tarfile.CHRTYPE | tarfile.BLKTYPE | tarfile.FIFOTYPE:
                self._special(parent, leaf, member, name)
            case _ if member.isfile():
                self._file(archive, parent, leaf, member)
            case _:
                self.report.skipped.append(name)

    def _whiteout(self, above: list[str], leaf: str) -> None:
        if leaf == OPAQUE:
            self.report.opaque.append("/".join(above) or ".")
            return
        gone = leaf[len(WHITEOUT) :]
        if gone in {"", ".", ".."}:
            raise UnsupportedError(f"a layer removes {gone!r}, which is no name")
        self.report.whiteouts.append("/".join([*above, gone]))

    def _file(self, archive: tarfile.TarFile, parent: int, leaf: str, member: tarfile.TarInfo) -> None:
        source = archive.extractfile(member)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(leaf, flags, 0o600, dir_fd=parent), "wb", buffering=0) as file:
            if source is not None:
                shutil.copyfileobj(source, file, MIB)
            self._facts(file.fileno(), member)

    def _hard_link(self, parent: int, leaf: str, member: tarfile.TarInfo) -> None:
        target = _parts(member.linkname)
        try:
            if not target:
                raise FileNotFoundError(errno.ENOENT, "names no file")
            source = self._tree.parent(target, make=False)
            os.link(target[-1], leaf, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise UnsupportedError(
                f"a layer holds {member.name!r} as another name of {member.linkname!r}, which it does not hold"
            ) from error

    def _special(self, parent: int, leaf: str, member: tarfile.TarInfo, name: str) -> None:
        kind = {tarfile.CHRTYPE: stat.S_IFCHR, tarfile.BLKTYPE: stat.S_IFBLK, tarfile.FIFOTYPE: stat.S_IFIFO}[member.type]
        device = os.makedev(member.devmajor, member.devminor)
        # To an overlay a character device 0:0 means that a file is gone.
        if kind == stat.S_IFCHR and device == 0:
            self.report.skipped.append(name)
            return
        try:
            os.mknod(leaf, kind | 0o600, 0 if kind == stat.S_IFIFO else device, dir_fd=parent)
        except PermissionError:
            self.report.skipped.append(name)
            return
        self._own(leaf, member, dir_fd=parent)
        os.chmod(leaf, self._mode(member), dir_fd=parent)
        os.utime(leaf, ns=_moments(member), dir_fd=parent)

    def _facts(self, handle: int, member: tarfile.TarInfo) -> None:
        """Owner first: changing it takes away set-uid bits and capabilities."""
        self._own(handle, member)
        os.fchmod(handle, self._mode(member))
        for key, value in member.pax_headers.items():
            attribute = key.removeprefix(_XATTR)
            if attribute != key and attribute.startswith(KEPT_ATTRIBUTES):
                with contextlib.suppress(OSError):  # a file system or user without them: the file itself is whole
                    os.setxattr(handle, attribute, value.encode("utf-8", "surrogateescape"))
        os.utime(handle, ns=_moments(member))

    def _facts_of_link(self, parent: int, leaf: str, member: tarfile.TarInfo) -> None:
        self._own(leaf, member, dir_fd=parent, follow_symlinks=False)
        os.utime(leaf, ns=_moments(member), dir_fd=parent, follow_symlinks=False)

    def _finish_folder(self, name: str, member: tarfile.TarInfo) -> None:
        handle = self._tree.open_folder([] if name == "." else name.split("/"))
        if handle is None:  # a later entry of the layer took its place
            return
        try:
            self._facts(handle, member)
        finally:
            os.close(handle)

    def _own(self, what: int | str, member: tarfile.TarInfo, **options: Any) -> None:
        if not self.report.owners:
            return
        try:
            os.chown(what, member.uid, member.gid, **options)
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.EINVAL}:
                raise
            self.report.owners = False  # root of a user namespace without such users

    def _mode(self, member: tarfile.TarInfo) -> int:
        # A set-uid bit on a file that belongs to this user would give away this user.
        return member.mode & (0o7777 if self.report.owners else 0o1777)


def _parts(name: str) -> list[str]:
    parts = [part for part in posixpath.normpath(name).split("/") if part not in {"", "."}]
    if ".." in parts:
        raise UnsupportedError(f"a layer holds {name!r}, which leads outside of the image")
    return parts


def _moments(member: tarfile.TarInfo) -> tuple[int, int]:
    moment = int(member.mtime * 1_000_000_000) if math.isfinite(member.mtime) else 0
    moment = moment if moment in _MOMENTS else 0
    return moment, moment


class _Hashed(io.RawIOBase):
    """Passes bytes on and hashes them all, also those after the archive's end."""

    def __init__(self, source: IO[bytes], expected: str, check: Any) -> None:
        self._source = source
        self._check = check
        self._hash = hashlib.new(expected.partition(":")[0])

    @property
    def digest(self) -> str:
        """Of what has passed."""
        return f"{self._hash.name}:{self._hash.hexdigest()}"

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Reads."""
        self._check()
        data = self._source.read(len(buffer))
        self._hash.update(data)
        buffer[: len(data)] = data
        return len(data)

    def drain(self) -> None:
        """Reads what follows the archive."""
        while data := self._source.read(MIB):
            self._hash.update(data)


@contextmanager
def _decompressed(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    head = raw.read(4)
    whole: IO[bytes] = io.BufferedReader(_Behind(head, raw), MIB)
    if head.startswith(_GZIP):
        with gzip.GzipFile(fileobj=whole) as plain:
            yield plain  # type: ignore[misc]
    elif head == _ZSTD or (head[1:] == _ZSTD_SKIPPED and head[0] >> 4 == 5):
        with _zstd(whole) as out:
            yield out
    else:
        yield whole


@contextmanager
def _zstd(packed: IO[bytes]) -> Iterator[IO[bytes]]:
    """Through the program `zstd`: Python 3.11 has no decoder."""
    try:
        process = subprocess.Popen(["zstd", "-dcq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise UnsupportedError("a layer is compressed by zstd, and there is no program zstd", hint="install the package zstd") from error
    feeder = threading.Thread(target=_feed, args=(packed, process.stdin), daemon=True)
    feeder.start()
    try:
        assert process.stdout is not None
        yield process.stdout
        if process.wait() != 0:
            raise EOFError("zstd says that it is damaged")
    finally:
        process.kill()
        process.wait()
        feeder.join()
        if process.stdout is not None:
            process.stdout.close()


def _feed(packed: IO[bytes], into: IO[bytes] | None) -> None:
    if into is not None:
        with contextlib.suppress(OSError), into:
            shutil.copyfileobj(packed, into, MIB)


class _Behind(io.RawIOBase):
    """Bytes that were read already, and the rest."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Reads."""
        data = self._head[: len(buffer)] or self._rest.read(len(buffer))
        self._head = self._head[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)
