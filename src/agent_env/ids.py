"""Ids: their grammar, those derived from others, those spelled as paths, and new random ones.

Bare ids are free text. `@local/…` ids name what lives on this machine; their segments have a grammar, because they come from folder
names and become keys. No other `@` namespace exists.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from agent_env.errors import Problem, ProblemsError
from agent_env.wording import quoted

LOCAL = "@local/"
MAX_ID_BYTES = 4096
MAX_AUTHORED_ID_BYTES = MAX_ID_BYTES - len("__files__") - 16
"""What a bundle may declare, so that the longest derived id still fits."""
NAME_HINT = "names are printable text"
DERIVED = "__"
"""Separates a base id from the suffix of one derived from it."""

_EXTRA = frozenset(" ._-~/@()+,&")
_INVISIBLE = frozenset((0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)))
_ENCODED_LOCAL = r"(?s:local/.*|local-[a-z0-9-]*-[0-9a-f]{12})"
_PLAIN_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What nearly every segment is: legal without a look at each character."""
_SAFE_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_SLUG_LENGTH = 48
_KEY_BYTES = 200


def id_problem(id: str) -> str | None:
    """Why a text can't be an id, or None."""
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        return "holds half of a surrogate pair, which is no character"
    if not id.strip():
        return "is empty"
    if size > MAX_ID_BYTES:
        return f"is longer than {MAX_ID_BYTES} bytes"
    if id.startswith(LOCAL):
        return _segments_problem(id[len(LOCAL) :])
    if id.startswith("@"):
        return f"names the namespace {id.partition('/')[0]!r}; only '@local/…' exists"
    if any(unicodedata.category(character) == "Cc" for character in id):
        return "holds a control character"
    if re.fullmatch(_ENCODED_LOCAL, id):
        return "is spelled like the stored form of a local id"
    return None


def name_problem(name: str) -> str | None:
    """Why a text can't be a name within a task (a step's, a sandbox's, a verifier's), or None.

    Names are columns of databases, keys of records, and lines of terminals.
    """
    control = next((character for character in name if unicodedata.category(character) == "Cc"), None)
    return None if control is None else f"holds a control character (U+{ord(control):04X})"


def check_id(id: str, *, what: str = "id", source: str | None = None, path: str | None = None) -> str:
    """Gives a legal id back.

    Raises:
        ProblemsError: Why it is none.
    """
    problem = id_problem(id)
    if problem is not None:
        raise ProblemsError([Problem(f"the {what} {quoted(id)} {problem}", source, path)])
    return id


def segment_problem(segment: str) -> str | None:
    """Why a text can't be one segment of a local id, or None."""
    if _PLAIN_SEGMENT.fullmatch(segment):
        return None
    if segment in {"", ".", ".."}:
        return f"has the segment {segment!r}, which names nothing"
    if segment != segment.strip(" "):
        return f"has the segment {quoted(segment)}, which starts or ends with a space"
    before = ""
    for character in segment:
        group = unicodedata.category(character)[0]
        if ord(character) in _INVISIBLE or 0xE0100 <= ord(character) <= 0xE01EF:
            return f"holds an invisible character (U+{ord(character):04X})"
        if group == "M" and before not in {"L", "N", "M"}:
            return f"holds a combining mark (U+{ord(character):04X}) that follows no letter"
        if group not in {"L", "N", "M"} and character not in _EXTRA:
            return f"holds {character!a}, which local ids can't have"
        before = group
    return None


def _segments_problem(rest: str) -> str | None:
    return next((problem for problem in map(segment_problem, rest.split("/")) if problem), None)


def derive_id(base: str, suffix: str) -> str:
    """The id of something made from `base`: `<base>__<suffix>`."""
    return f"{base}{DERIVED}{suffix}"


def is_local(id: str) -> bool:
    """It lives on this machine."""
    return id.startswith(LOCAL)


def key_segment(id: str) -> str:
    """The id as part of an object key or image repository: itself, unless it is local or over 200 bytes long."""
    if is_local(id):
        return f"local/{_slug(id[len(LOCAL) :])}-{_hash(id)}"
    if len(id.encode()) > _KEY_BYTES:
        return f"{_slug(id)}-{_hash(id)}"
    return id


def fs_safe(id: str) -> str:
    """The id as one file name. Two ids never share one."""
    if is_local(id):
        return key_segment(id).replace("/", "-")
    if re.fullmatch(_SAFE_NAME, id) and not id.startswith("local-"):
        return id
    return f"{_slug(id)}-{_hash(id)}"


def _slug(text: str) -> str:
    words = re.findall(r"[a-z0-9]+", unicodedata.normalize("NFKD", text).lower())
    return "-".join(words)[-_SLUG_LENGTH:].strip("-") or "x"


def _hash(id: str) -> str:
    return hashlib.sha256(id.encode()).hexdigest()[:12]


def home_folder(environ: Mapping[str, str]) -> Path | None:
    """The user's home: `$HOME` when it is absolute and a real folder other than `/`, else what the user database says."""
    named = environ.get("HOME", "")
    if named.startswith("/") and "\0" not in named:
        home = Path(named).resolve()
        # Not below a folder that this user may not look into: `is_dir` raises there.
        if home != Path("/") and os.access(home, os.F_OK) and home.is_dir():
            return home
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
    except KeyError:
        return None


def local_id_root(path: Path, home: Path | None) -> str:
    """The id root of a folder: `@local/~/<path below home>`, else `@local/<absolute path>`.

    Args:
        path: The folder, absolute and resolved.
        home: The user's home folder, resolved; see `home_folder`.

    Raises:
        ProblemsError: A folder's name can't be a segment of an id.
    """
    if home is not None and path != home and path.is_relative_to(home):
        rest = f"~/{PurePosixPath(path.relative_to(home))}"
    else:
        rest = str(PurePosixPath(path)).lstrip("/")
    rest = unicodedata.normalize("NFC", rest)
    problem = "is the root of the file system" if not rest else _segments_problem(rest)
    if problem:
        hint = "rename the folder, or give the bundle a name of its own in bundle.toml"
        raise ProblemsError([Problem(f"the folder can't be an id: it {problem}", str(path), hint=hint)])
    return LOCAL + rest


def named_id_root(name: str, *, source: str | None = None, path: str | None = "$.name") -> str:
    """The id root of a bundle that names itself in `bundle.toml`, wherever its folder lies: `@local/<name>`.

    Raises:
        ProblemsError: The name is not one legal segment.
    """
    name = unicodedata.normalize("NFC", name)
    problem = "has more than one segment" if "/" in name else "means the home folder" if name == "~" else segment_problem(name)
    if problem is None and DERIVED in name:
        problem = f"holds {DERIVED!r}, which is kept for derived ids"
    if problem:
        raise ProblemsError([Problem(f"the bundle name {quoted(name)} {problem}", source, path)])
    return LOCAL + name


def run_id_problem(id: str) -> str | None:
    """Why a text can't be a run's id, or None. It is the name of the run's folder."""
    return None if re.fullmatch(_SAFE_NAME, id) else "is no name that a folder can have everywhere"


def new_run_id() -> str:
    """A new run's id, such as `run-k3v9q0zd2m1x`."""
    return f"run-{_random(12)}"


def new_group_id() -> str:
    """What the runs of one command have in common, such as `group-k3v9q0zd2m1x`."""
    return f"group-{_random(12)}"


def new_instance_id(task_id: str) -> str:
    """A new instance's id: `<task id>-<8 of a–z and 0–9>` (reference)."""
    return f"{task_id}-{_random(8)}"


def new_sandbox_id(provider: str) -> str:
    """A new sandbox's id: `<provider>-<12 hexadecimal digits>`."""
    return f"{provider}-{os.urandom(6).hex()}"


def new_attempt_id() -> str:
    """A new attempt's id: idempotency key of everything the attempt does."""
    return f"att-{_random(14)}"


def _random(length: int) -> str:
    """Evenly drawn characters: bytes past the last full round of the alphabet are thrown away."""
    limit = 256 - 256 % len(_ALPHABET)
    drawn = ""
    while len(drawn) < length:
        drawn += "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(length) if byte < limit)
    return drawn[:length]
