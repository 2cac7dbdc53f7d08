"""Reading zip archives that somebody else made: every member is looked at before any is unpacked, and nothing touches a disk.

An archive that could not be written out exactly as it says is refused whole, with the member that is at fault.
"""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import Problem, ProblemsError

MAGIC = b"PK"
_END = b"PK\x05\x06"
_DIRECTORY_BYTES = struct.Struct("<12xL")
"""In the end record: how long the list of members is."""
_LEAST_ENTRY_BYTES = 46
_ENCRYPTED = 0x1
_NAME_BYTES = 255
_PATH_BYTES = 4000
"""What Linux takes is 255 and 4096; the rest is for the folder that the files go to."""
_SHOWN = 120


def unzip(data: bytes, *, source: str, limits: Limits = DEFAULT_LIMITS, only: tuple[str, ...] = ()) -> Iterator[tuple[str, bytes]]:
    """The files of an archive, in its order, by their names in their plain form. Folders are left out.

    Args:
        data: The archive.
        source: What it is called in problems.
        limits: `payload_bytes` of all members together, `payload_entries`, `payload_ratio` above `payload_unquestioned_bytes`.
        only: Members to unpack: those of these names, or below those that end in a slash; everything when empty. All are looked at.

    Raises:
        ProblemsError: It is damaged; it has too many members or unpacks to too much; a member leads outside, is absolute, encrypted, a
            link or special file, there twice, named as no file can be, or not what its entry says.
    """
    _count(data, source, limits)
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except UnicodeDecodeError as error:
        raise refused(source, _shown(error.object), "has a name that says that it is UTF-8 and is not") from error
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, struct.error) as error:
        raise refused(source, None, f"is a damaged zip archive: {type(error).__name__}") from error
    members = [(member, _name(member, source)) for member in archive.infolist()]
    wanted = [(member, name) for member, name in members if not member.is_dir() and _is_wanted(name, only)]
    _check_kinds(wanted, source)
    _check_sizes([member for member, _ in wanted], len(data), source, limits)
    for member, name in wanted:
        yield name, _content(archive, member, source)


def _count(data: bytes, source: str, limits: Limits) -> None:
    """Before the list of members is read: reading it costs many times its own size."""
    end = data.rfind(_END)
    if end < 0 or end + _DIRECTORY_BYTES.size > len(data):
        raise refused(source, None, "is a damaged zip archive: it has no end record")
    (size,) = _DIRECTORY_BYTES.unpack_from(data, end)
    most = min(size, len(data)) // _LEAST_ENTRY_BYTES
    if most > limits.payload_entries and data.count(b"PK\x01\x02") > limits.payload_entries:
        raise refused(source, None, f"has more than {limits.payload_entries} members (limit payload_entries)")


def _is_wanted(name: str, only: tuple[str, ...]) -> bool:
    return not only or any(name.startswith(each) if each.endswith("/") else name == each for each in only)


def _name(member: zipfile.ZipInfo, source: str) -> str:
    """A member's name in its plain form, as long as some file below a folder can have it."""
    name = member.filename
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise refused(source, _shown(name), "leads outside")
    if name.startswith("/"):
        raise refused(source, _shown(name), "is an absolute path")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError as error:
        raise refused(source, _shown(name), "has a name that holds half of a surrogate pair") from error
    if any(size > _NAME_BYTES for size in sizes) or sum(sizes) + len(sizes) > _PATH_BYTES:
        raise refused(source, _shown(name), f"has a name that is too long ({_NAME_BYTES} bytes a part, {_PATH_BYTES} in all)")
    return "/".join(parts)


def _check_kinds(members: list[tuple[zipfile.ZipInfo, str]], source: str) -> None:
    seen: dict[str, str] = {}
    for member, name in members:
        if member.flag_bits & _ENCRYPTED:
            raise refused(source, _shown(member.filename), "is encrypted")
        if stat.S_IFMT(member.external_attr >> 16) not in {0, stat.S_IFREG}:
            raise refused(source, _shown(member.filename), "is a link or special file")
        if name in seen:
            raise refused(source, _shown(member.filename), f"is there twice (also as {_shown(seen[name])!r})")
        seen[name] = member.filename


def _check_sizes(members: list[zipfile.ZipInfo], packed: int, source: str, limits: Limits) -> None:
    """By what the archive says of itself: a member that holds more than it says is never read beyond that, and found damaged."""
    if len(members) > limits.payload_entries:
        raise refused(source, None, f"has more than {limits.payload_entries} members (limit payload_entries)")
    total = 0
    for member in members:
        total += member.file_size
        if total > limits.payload_bytes:
            message = f"makes the payload larger than it may be ({limits.payload_bytes} bytes, limit payload_bytes)"
            raise refused(source, _shown(member.filename), message)
        # Counted against the whole archive too: members may share the bytes that they unpack from.
        if total > limits.payload_unquestioned_bytes and total > packed * limits.payload_ratio:
            message = f"unpacks to {total} bytes of an archive of {packed}: more than {limits.payload_ratio} times as much"
            raise refused(source, _shown(member.filename), f"{message} (limit payload_ratio)")


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo, source: str) -> bytes:
    try:
        with archive.open(member) as stream:
            content = stream.read(max(member.file_size, 1))  # with a size: without one, a whole bomb is unpacked before it is cut
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, struct.error) as error:
        raise refused(source, _shown(member.filename), f"is damaged: {type(error).__name__}") from error
    if len(content) != member.file_size:
        raise refused(source, _shown(member.filename), f"is damaged: it holds {len(content)} bytes and says {member.file_size}")
    return content


def _shown(name: str | bytes) -> str:
    text = ascii(name)[2:-1] if isinstance(name, bytes) else name.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def refused(source: str, where: str | None, message: str) -> ProblemsError:
    """Why a payload is not unpacked, by the member at fault."""
    return ProblemsError([Problem(message, source, where)])
