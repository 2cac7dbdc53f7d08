"""What only some agents can: take files, record what they change, be installed, tell whose work they do."""

from __future__ import annotations

import asyncio
import base64
import io
import secrets
import string
import struct
import uuid
import wave
import zlib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
from agent_env_sdk.wire.agent_extensions import ATTRIBUTION_PROBE, INSTALL, SNAPSHOT, STAGING, STANDARDS, find, supported_config

from agent_env.agents import changelogs
from agent_env.agents.conformance.check import Area, Gate, SkippedError, Subject, holds
from agent_env.agents.contract import End
from agent_env.agents.faults import AgentFailedError
from agent_env.agents.install import PARAMETERS
from agent_env.agents.live import RecordedAgent
from agent_env.agents.staging import staged
from agent_env.clock import SystemClock

FILES, CHANGES, PLACES, WHOSE = Area(Gate.MODALITIES), Area(Gate.CHANGELOG), Area(Gate.INSTALL), Area(Gate.ATTRIBUTION)
SEEING = Area(Gate.MODEL)
Json = Any
_UNSUPPORTED_CONTENT: Final = "rpc_-32005"
"""A2A's word for a kind of content that an agent does not take."""
_READY: Final = "Reply with the single word: ready"


# files


def _png(red: int, green: int, blue: int, side: int = 64) -> bytes:
    """A square of one colour (PNG 1.2: signature, IHDR, IDAT, IEND)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes((red, green, blue)) * side) * side
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _wav() -> bytes:
    """A tenth of a second of silence."""
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\0\0" * 800)
    return made.getvalue()


def _pdf() -> bytes:
    """A page with nothing on it."""
    objects = (
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 72 72] >>",
    )
    body, places = b"%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, text)
    table = b"".join(b"%010d 00000 n \n" % each for each in places)
    return body + b"xref\n0 4\n0000000000 65535 f \n%strailer\n<< /Size 4 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (table, len(body))


_SAMPLES: Final[Mapping[str, Callable[[], bytes]]] = {
    "image/png": lambda: _png(220, 20, 20),
    # A GIF of one pixel: GIF89a, a table of two colours.
    "image/gif": lambda: base64.b64decode("R0lGODlhAQABAIAAAP8AAAAAACwAAAAAAQABAAACAkQBADs="),
    "audio/wav": _wav,
    "application/pdf": _pdf,
    "text/plain": lambda: b"a line of text\n",
}


def _file(kind: str) -> dict[str, Json]:
    data = base64.b64encode(_SAMPLES[kind]()).decode()
    return {"kind": "file", "file": {"bytes": data, "mimeType": kind, "name": f"sample.{kind.rpartition('/')[2]}"}}


@FILES.check("2.3", "7.6")
async def it_takes_the_kinds_of_files_that_its_card_names(subject: Subject) -> str:
    """A file of each kind that its card names is taken, and not refused as content that it does not know"""
    named = (await subject.agent.card()).default_input_modes or []
    kinds = [kind for kind in _SAMPLES if kind in named]
    if not kinds:
        raise SkippedError("kinds of files on its card")
    for kind in kinds:
        turn = await subject.ask(_READY, parts=[_file(kind)])
        refused = turn.end is End.REJECTED or turn.error_code == _UNSUPPORTED_CONTENT
        holds(not refused, f"{kind} is on its card, and refused: {turn.error_message}")
    return ", ".join(kinds)


@SEEING.check("7.6")
async def it_sees_a_picture(subject: Subject) -> str:
    """It names the colour of a picture, and nothing that could be said of any picture"""
    if "image/png" not in ((await subject.agent.card()).default_input_modes or []):
        raise SkippedError("pictures on its card")
    asked = "Which colour is this picture? Answer with one word, or with the word unknown if you see no picture."
    turn = await subject.ask(asked, parts=[_file("image/png")])
    said = (turn.text or "").strip().strip(string.punctuation).casefold()
    holds(said == "red", f"it ended as {turn.end}: {(turn.text or turn.error_message or '')[:100]}")
    return said


# what its calls change


async def _can_record(subject: Subject) -> None:
    await subject.needs(SNAPSHOT, "enable-changelog", "apply-changelog")
    if find(await subject.agent.card(), STAGING) is None:
        raise SkippedError("staging")


def _corner() -> str:
    """A part of its store that nobody else knows."""
    return f"{STANDARDS[STAGING].path}/{secrets.token_urlsafe(24)}"


@CHANGES.check("2.4", "7.12")
async def it_says_what_it_watches(subject: Subject) -> str:
    """Asked to record what its calls change, it names the folders that it watches"""
    await _can_record(subject)
    async with subject.own() as agent:
        roots = await changelogs.enable(agent, clock=SystemClock(), seconds=subject.prompt_seconds, corner=_corner())
        odd = [each for each in roots if not each.startswith("/")]
        holds(roots and not odd, f"it watches {odd or 'nothing'}")
    return ", ".join(roots)


@CHANGES.check("2.4")
async def changes_are_replayed_in_order_or_not_at_all(subject: Subject) -> None:
    """Nothing is replayed of increments whose numbers don't increase, and of what is none"""
    await _can_record(subject)
    limits = subject.agent.client.limits
    async with subject.own() as agent:
        answer = await agent.invoke(SNAPSHOT, "apply-changelog", {"increments": []})
        holds(isinstance(answer, Mapping) and answer.get("count") == 0, f"of no increments it replays {answer}")
        with TemporaryDirectory() as folder:
            async with staged(agent, limits, SystemClock()) as staging:
                made = Path(folder, "none")
                await asyncio.to_thread(made.write_bytes, b"this is no increment")
                object_ = await staging.put("none", made)
                for sequences in ([2, 2], [3, 1]):
                    increments = [{"sequence": each, "object": object_} for each in sequences]
                    await _refused(agent, {"increments": increments}, f"increments {sequences}")
                await _refused(agent, {"increments": [{"sequence": 0, "object": object_}]}, "what is no increment")


async def _refused(agent: RecordedAgent, body: Mapping[str, Json], what: str) -> None:
    try:
        await agent.invoke(SNAPSHOT, "apply-changelog", body)
    except AgentFailedError as error:
        holds(httpx.codes.is_client_error(error.status), f"it answers {what} with status {error.status}")
        return
    raise AssertionError(f"it replays {what}")


@SEEING.check("7.12")
async def what_its_calls_change_can_be_replayed(subject: Subject) -> str:
    """A file that a command made is there in another agent of the same kind, once that one has replayed the changes"""
    await _can_record(subject)
    word, limits, clock = f"VALIDATOR-{secrets.token_hex(4)}", subject.agent.client.limits, SystemClock()
    async with subject.own() as one, subject.own() as other:
        corner = _corner()
        await changelogs.enable(one, clock=clock, seconds=subject.prompt_seconds, corner=corner)
        await subject.ask(f"Run the shell command `echo {word} > changelog_marker.txt` and answer: done", agent=one)
        with TemporaryDirectory() as folder:
            came = await changelogs.fetched(one, Path(folder), known=frozenset(), limits=limits, corner=corner)
            holds(came, "it recorded nothing")
            await changelogs.apply(other, came, limits=limits, clock=clock, seconds=subject.prompt_seconds)
        turn = await subject.ask("Run the shell command `cat changelog_marker.txt` and answer with its output.", agent=other)
    holds(word in (turn.text or ""), f"it ended as {turn.end}: {(turn.text or turn.error_message or '')[:100]}")
    return f"{len(came)} increments"


# where it can be put


@PLACES.check("2.4", "3.4", "7.13")
async def it_can_be_installed_as_it_says(subject: Subject) -> str:
    """Its install commands ask for nothing but what there is, and for all of it in what they say they need"""
    extension = find(await subject.agent.card(), INSTALL)
    if extension is None:
        raise SkippedError("install")
    params, ways = extension.params or {}, []
    for suffix in ("", "_host", "_inside"):
        commands = params.get(f"install_commands{suffix}")
        if not commands:
            continue
        texts = isinstance(commands, list) and all(isinstance(each, str) for each in commands)
        holds(texts, f"install_commands{suffix} is no list of texts")
        needed = params.get(f"required_params{suffix}") or params.get("required_params") or []
        asked = {name for each in commands for name in _placeholders(each)}
        unknown = sorted((asked | set(needed)) - PARAMETERS)
        holds(not unknown, f"install_commands{suffix} ask for {', '.join(unknown)}, which nobody knows")
        undeclared = sorted(asked - set(needed))
        holds(not undeclared, f"required_params{suffix} lacks {', '.join(undeclared)}")
        ways.append(suffix.removeprefix("_") or "container")
    port = params.get("a2a_port")
    holds(ways, "it has no install commands")
    holds(port is None or (isinstance(port, int) and 0 < port < 65536), f"a2a_port is {port!r}")
    return ", ".join(ways)


def _placeholders(command: str) -> list[str]:
    try:
        return [name for _, name, _, _ in string.Formatter().parse(command) if name]
    except ValueError as error:
        raise AssertionError(f"{command.splitlines()[0][:80]!r} can't be filled in: {error}") from None


# whose work it does


@WHOSE.check("2.4")
async def it_tells_whose_work_it_did_last(subject: Subject) -> str:
    """It tells the attribution that it saw last, as texts, with the time; and that of a prompt where it takes one"""
    await subject.needs(ATTRIBUTION_PROBE, "probe")
    task = f"checked-{uuid.uuid4().hex[:8]}"
    takes = "task_id" in supported_config(await subject.agent.card())
    if takes:
        await subject.ask(_READY, task_id=task)
    answer = await subject.agent.invoke(ATTRIBUTION_PROBE, "probe", {})
    seen = answer.get("last_seen_attribution") if isinstance(answer, Mapping) else None
    if not isinstance(seen, Mapping) or not all(isinstance(each, str) for each in seen.values()):
        raise AssertionError(f"it answers {answer}")
    holds(not takes or task in seen.values(), f"it was given the task {task}, and tells {seen}")
    at = answer.get("last_seen_at_utc")
    holds(at is None or _is_utc(at), f"last_seen_at_utc is {at!r}")
    return ", ".join(f"{name}={value}" for name, value in seen.items()) or "nothing"


def _is_utc(value: Json) -> bool:
    try:
        return datetime.fromisoformat(str(value)).utcoffset() == timedelta(0)
    except ValueError:
        return False
