"""Answers kept in a folder, and found again by what was asked: a run can be done again without a model.

A request is known by its normal form: what differs from one run to the next although nothing changed (ids, times, tokens, temporary
paths) is taken out, and so is what only tunes the connection. Where a tool's output differed all the same, the request is known by
its place in the conversation.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent_env_sdk.wire.encoding import json_bytes

from agent_env.broker.contract import Dialect
from agent_env.broker.dialects import SPELLINGS, Route
from agent_env.errors import StorageError

Json = Any
FORMAT: Final = "agent-env-model-recording/1"
_IDLE_FIELDS: Final = frozenset(
    {"metadata", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier", "store", "stream_options"}
    | {"client_metadata", "inference_geo"}
)
"""Fields of a request that say who asks, or how to bill it, and not what."""
_VOLATILE: Final = re.compile(
    r"(?i)\baem-[0-9a-f]{24}-[0-9a-f]{64}\b"
    r"|(?<![0-9a-z])(?:[a-z]+_)?[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}(?![0-9a-f])"
    r"|\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\b(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,? +)?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]* +\d{1,2},? +"
    r"(?:\d\d:\d\d:\d\d +\w+ +)?\d{4}"
    r"|\b\d{1,2}/\d{1,2}/\d{4}\b|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
    r"|\b1[5-9]\d{8}(?:\d{3}|\.\d+)?\b"
    r"|\b\d+(?:\.\d+)? ?(?:ms|µs|us|s|sec|secs|seconds|milliseconds)\b"
    r"|/tmp/[\w.-]+"
    r"|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{12,}\b"
    r"|\b127\.0\.0\.1:\d+\b|\blocalhost:\d+\b"
)
"""Tokens of ours, UUIDs, times of every usual spelling, durations, temporary paths, digests, ports of loopback."""
_GONE: Final = "~"
_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as recordings know it."""

    normal: Json
    key: str
    """Of its normal form."""
    shape: str
    """Of its place in a conversation: which model, how far on, and how it began."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An answer."""

    status: int
    content_type: str
    body: bytes
    model: str | None
    exact: bool = True
    """False: the request was known by its place in the conversation alone."""


def asked(route: Route, model: str | None, body: Mapping[str, Json]) -> Asked:
    """The normal form of a request."""
    kept = {name: value for name, value in body.items() if name not in _IDLE_FIELDS}
    if route.dialect is Dialect.RESPONSES and isinstance(kept.get("input"), list):
        kept["input"] = [_unnamed(item) for item in kept["input"]]
    normal = {"dialect": route.dialect.value, "resource": route.resource, "model": model, "body": normalised(kept)}
    items = kept.get(SPELLINGS[route.dialect].items)
    conversation = items if isinstance(items, list) else [items]
    first = next((each for each in conversation if isinstance(each, Mapping) and each.get("role", "user") == "user"), conversation[:1])
    tools = sorted(_names(body.get("tools")))
    shape = [route.dialect.value, route.resource, model, len(conversation), normalised(first), tools, bool(body.get("stream"))]
    return Asked(normal, _digest(normal), _digest(shape))


def _unnamed(item: Json) -> Json:
    """An item of a conversation without the id that its client gave it; what belongs together is told by `call_id`."""
    return {name: value for name, value in item.items() if name != "id"} if isinstance(item, Mapping) else item


def normalised(value: Json) -> Json:
    """A value without what differs from run to run."""
    match value:
        case str():
            return _VOLATILE.sub(_GONE, value)
        case Mapping():
            return {str(name): normalised(member) for name, member in value.items()}
        case list():
            return [normalised(member) for member in value]
        case _:
            return value


class Recordings:
    """One folder of answers: a file for each, so that any number of processes may write.

    Args:
        folder: Made when first written into.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, asked: Asked, occurrence: int, answer: Recorded, redact: Callable[[Json], Json]) -> None:
        """Keeps an answer, in place of one that was kept for the same before.

        Args:
            asked: What was asked.
            occurrence: How often that was asked before, in this run.
            answer: What came back, whole.
            redact: Takes secrets out.

        Raises:
            StorageError: It can't be written.
        """
        body = redact(answer.body)
        try:
            told: dict[str, Json] = {"text": body.decode()}
        except UnicodeDecodeError:
            told = {"base64": base64.b64encode(body).decode()}
        data = {
            "format": FORMAT,
            "request": redact(asked.normal),
            "status": answer.status,
            "content_type": answer.content_type,
            "model": answer.model,
            **told,
        }
        target = self.folder / f"{asked.shape}.{asked.key}.{occurrence:04d}.json"
        fresh = self.folder / f".{secrets.token_hex(8)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Half a character, as programs leave it that cut texts by their code units, stays the escape that it came as.
            fresh.write_bytes(json_bytes(data, indent=1))
            fresh.replace(target)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise StorageError(f"can't write the recording {target}: {error.strerror}", concerns=str(target)) from error

    def find(self, asked: Asked, occurrence: int) -> Recorded | None:
        """The answer to what was asked, the n-th to the n-th time; the last one once there are no more.

        Where the very request was never recorded, the one answer at the same place of the same conversation that was asked most alike.

        Raises:
            StorageError: A file can't be read.
        """
        exact = sorted(self._files(f"{asked.shape}.{asked.key}.")) or sorted(self._files_of_key(asked.key))
        if exact:
            return self._read(exact[min(occurrence, len(exact) - 1)], exact=True)
        alike = sorted(self._files(f"{asked.shape}."))
        if not alike:
            return None
        wanted = _lines(asked.normal)
        best = max(alike, key=lambda path: _likeness(wanted, _lines(self._data(path)["request"])))
        return self._read(best, exact=False)

    def closest(self, asked: Asked) -> str | None:
        """What tells a person why nothing was found: the first place where the request differs from the recorded one most like it."""
        wanted = _lines(asked.normal)
        known = [(_likeness(wanted, lines), lines) for path in self._files("") if (lines := _lines(self._data(path)["request"]))]
        if not known:
            return None
        _, lines = max(known, key=lambda each: each[0])
        ours = [line for line in wanted if line not in set(lines)]
        theirs = [line for line in lines if line not in set(wanted)]
        return f"asked {_short(ours)}, recorded {_short(theirs)}"

    def _files(self, prefix: str) -> Iterator[Path]:
        try:
            yield from (Path(each) for each in os.scandir(self.folder) if each.name.startswith(prefix) and each.name.endswith(".json"))
        except FileNotFoundError:
            return

    def _files_of_key(self, key: str) -> Iterator[Path]:
        return (path for path in self._files("") if path.name.split(".")[1:2] == [key])

    def _data(self, path: Path) -> dict[str, Json]:
        try:
            data: dict[str, Json] = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise ValueError(f"its format is {data['format']!r}")
            return data
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(f"the recording {path} can't be read: {error}", concerns=str(path)) from error

    def _read(self, path: Path, *, exact: bool) -> Recorded:
        data = self._data(path)
        body = data["text"].encode() if "text" in data else base64.b64decode(data["base64"])
        return Recorded(data["status"], data["content_type"], body, data.get("model"), exact)


def _names(tools: Json) -> Iterator[str]:
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, Mapping):
            function = tool.get("function")
            yield str(tool.get("name") or (function.get("name") if isinstance(function, Mapping) else "") or tool.get("type"))


def _digest(value: Json) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def _lines(value: Json) -> list[str]:
    return json.dumps(value, sort_keys=True, indent=0, ensure_ascii=False).replace("\\n", "\n").splitlines()


def _likeness(one: list[str], other: list[str]) -> float:
    """The share of lines that both have."""
    return len(set(one) & set(other)) / max(len(set(one) | set(other)), 1)


def _short(lines: list[str]) -> str:
    text = " … ".join(line.strip() for line in lines[:3])
    return repr(text if len(text) <= 200 else f"{text[:200]}…") if text else "nothing beside that"
