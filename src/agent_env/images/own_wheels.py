"""Our own distributions as wheels, packed from what is installed here: the same sources make the same bytes, and no index is asked."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from agent_env.errors import UnsupportedError
from agent_env.images.whole import written

OWN: Mapping[str, str] = {"agent-env-sdk": "agent_env_sdk"}
"""Distribution → its package. They are pure Python."""
_MOMENT = (1980, 1, 1, 0, 0, 0)
"""The first that an archive can hold."""
_RACY_NANOSECONDS = 2_000_000_000
"""A file that changed so lately may change again without a sign of it: no file system's clock is coarser (FAT: 2 s)."""


def own_wheel(name: str, into: Path) -> Path:
    """The wheel of a distribution of ours, packed unless these very sources were packed before.

    As long as no file of theirs was touched, none of them is read.

    Args:
        name: One of `OWN`.
        into: A folder of this installation.

    Raises:
        UnsupportedError: It is not installed here.
        StorageError: It can't be read or written.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError as error:
        raise UnsupportedError(f"{name} is not installed beside agent-env, so it can't be put into images", concerns=name) from error
    root, prefix = _root(OWN[name], name), f"{name.replace('-', '_')}-{found.version}"
    metadata = found.read_text("METADATA") or ""
    marks, newest = _marks(root, metadata)
    memory = into / f"{prefix}.json"
    path = _remembered(memory, marks, into)
    if path is None:
        path = _packed(dict(_files(OWN[name], root)), metadata, prefix, into)
        if newest < time.time_ns() - _RACY_NANOSECONDS:
            with written(memory) as aside:
                aside.write_text(json.dumps({"marks": marks, "wheel": path.relative_to(into).as_posix()}))
    return path


def _remembered(memory: Path, marks: str, into: Path) -> Path | None:
    """The wheel that was packed when the sources looked as they do now."""
    try:
        known = json.loads(memory.read_text())
        path = into / str(known["wheel"]) if known["marks"] == marks else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return path if path is not None and path.is_file() else None


def _packed(files: Mapping[str, bytes], metadata: str, prefix: str, into: Path) -> Path:
    members = {**files, f"{prefix}.dist-info/METADATA": metadata.encode()}
    members[f"{prefix}.dist-info/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: agent-env\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    digest = hashlib.sha256(b"".join(key.encode() + members[key] for key in sorted(members))).hexdigest()[:16]
    path = into / digest / f"{prefix}-py3-none-any.whl"
    if not path.is_file():
        _pack(path, members, f"{prefix}.dist-info/RECORD")
    return path


def _root(package: str, name: str) -> Path:
    spec = find_spec(package)
    roots = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not roots:
        raise UnsupportedError(f"the package of {name} can't be found", concerns=name)
    return Path(roots[0])


def _sources(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == "__pycache__":
                continue
            if entry.is_dir():
                yield from _sources(entry.path)
            elif entry.is_file():
                yield entry


def _marks(root: Path, metadata: str) -> tuple[str, int]:
    """What tells that sources are the same without reading them, and when one of them changed last."""
    found, newest = [metadata, str(root)], 0
    for entry in sorted(_sources(str(root)), key=lambda entry: entry.path):
        status = entry.stat()
        found.append(f"{entry.path} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}")
        newest = max(newest, status.st_mtime_ns, status.st_ctime_ns)
    return hashlib.sha256("\n".join(found).encode("utf-8", "surrogateescape")).hexdigest(), newest


def _files(package: str, root: Path) -> Iterator[tuple[str, bytes]]:
    for entry in _sources(str(root)):
        yield f"{package}/{Path(entry.path).relative_to(root).as_posix()}", Path(entry.path).read_bytes()


def _pack(path: Path, members: Mapping[str, bytes], record: str) -> None:
    lines = [f"{name},sha256={_hash(data)},{len(data)}\n" for name, data in sorted(members.items())]
    whole = {**members, record: "".join([*lines, f"{record},,\n"]).encode()}
    with written(path) as aside, zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(whole.items()):
            entry = zipfile.ZipInfo(name, _MOMENT)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
