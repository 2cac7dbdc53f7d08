"""How an agent says that it is put into a place that is there already (`install/v1`): its commands, and what they want to be told."""

from __future__ import annotations

import json
import re
import shlex
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from agent_env_sdk.wire.agent_extensions import INSTALL

from agent_env.agents.contract import A2A_PORT
from agent_env.errors import UnsupportedError, UserError
from agent_env.places import Command, Completed, Place
from agent_env.places.place import Ending, Upload

Json = Any
READS_CARD = (
    "import json, sys\n"
    "sys.path.insert(0, '/app')\n"
    "from a2a_server import AGENT_CARD as card\n"
    "dump = getattr(card, 'model_dump', None)\n"
    "print(json.dumps(dump(mode='json', by_alias=True, exclude_none=True) if dump else card))\n"
)
"""What tells an agent's card from its image, without starting its server (reference)."""
SECRETS = frozenset({"litellm_api_key", "litellm_extra_headers"})
"""Parameters whose values never stand in a command: they are its variables."""
PARAMETERS = frozenset(
    {"container", "work_dir", "agent_ctx_tar", "a2a_port", "agent_name", "workspace_dir", "host_workdir", "host_user", "litellm_base_url"}
    | {"trust_env"}
    | SECRETS
)
_CONTEXT = "agent-ctx.tar.gz"
_SHOWN, _TAIL = 140, 1500
_PLAIN = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an agent is installed."""

    commands: Sequence[str]
    required: frozenset[str]
    port: int
    inside: bool
    """The commands run in the container itself, not on the machine beside it."""
    workdir: str | None = None
    user: str | None = None


def recipe_of(card: Mapping[str, Json], *, container: bool, port: int | None = None) -> Recipe:
    """What an agent's card says.

    Args:
        card: As its image has it.
        container: Into a container; else onto the machine.
        port: Where it is to listen; None is the card's word.

    Raises:
        UnsupportedError: It can't be installed there.
    """
    extensions = (card.get("capabilities") or {}).get("extensions") or ()
    params = next(((each.get("params") or {}) for each in extensions if each.get("uri") == INSTALL), None)
    if params is None:
        raise UnsupportedError(
            f"agent {card.get('name')!r} does not say how it is installed ({INSTALL})", hint="deploy it with deploy_agent"
        )
    ours = container and bool(params.get("install_commands_inside"))
    suffix = "_inside" if ours else "" if container else "_host"
    commands = params.get(f"install_commands{suffix}") or ()
    if not commands:
        where = "a container" if container else "a machine"
        raise UnsupportedError(f"agent {card.get('name')!r} can't be installed into {where}")
    required = frozenset(params.get(f"required_params{suffix}") or params.get("required_params") or ())
    known = int(port or params.get("a2a_port") or A2A_PORT)
    return Recipe(tuple(map(str, commands)), required, known, ours, params.get("workdir_host"), params.get("user_host"))


def filled(command: str, values: Mapping[str, str]) -> str:
    """A command with its placeholders filled, each quoted for the shell.

    Raises:
        UserError: It has one that nobody knows, or that has no value here.
    """
    names = {name for _, name, _, _ in string.Formatter().parse(command) if name}
    unknown, missing = sorted(names - PARAMETERS), sorted(names & PARAMETERS - values.keys())
    if unknown or missing:
        what = f"the unknown placeholder {unknown[0]!r}" if unknown else f"{missing[0]!r}, which has no value here"
        raise UserError(f"an install command asks for {what}: {command.splitlines()[0][:_SHOWN]}")
    quoted = {name: f'"${name.upper()}"' if name in SECRETS else shlex.quote(values[name]) for name in names}
    return command.format(**quoted)


async def install(
    place: Place,
    recipe: Recipe,
    values: Mapping[str, str],
    context: bytes,
    *,
    secrets: Mapping[str, str],
    attempt: str,
    seconds: float,
) -> None:
    """Runs an agent's install commands in a place.

    Args:
        place: Where they run.
        recipe: What to run.
        values: Of the parameters.
        context: What the agent's image is built from, as `.tar.gz`.
        secrets: Further variables of the commands, and so of what they start.
        attempt: Whose processes these are.
        seconds: Limit of each command.

    Raises:
        UserError: A parameter has no value.
        UnsupportedError: A command needs what the place does not have.
    """
    folder = PurePosixPath("/tmp") / f"install-agent-{_PLAIN.sub('-', values['agent_name'])}"
    given = {**values, "work_dir": str(folder), "agent_ctx_tar": str(folder / _CONTEXT)}
    missing = sorted(recipe.required & PARAMETERS - given.keys())
    if missing:
        raise UserError(f"the agent's install commands need {', '.join(missing)}, which has no value here")
    commands = [filled(command, given) for command in recipe.commands]
    await place.remove([folder])
    await place.put([Upload(folder, None, mode=0o700), Upload(folder / _CONTEXT, context, mode=0o600)], owner="0:0")
    told = {name.upper(): given[name] for name in SECRETS & given.keys()} | dict(secrets)
    for command, written in zip(commands, recipe.commands, strict=True):
        done = await place.run(
            Command(["/bin/sh", "-c", command], user="root", secrets=told, timeout_seconds=seconds, attempt=attempt, keep="tail")
        )
        if not done.ok:
            raise _failed(written, done)


def _failed(written: str, done: Completed) -> UnsupportedError:
    how = "took too long" if done.ending is Ending.TIMED_OUT else f"exited with {done.exit_code}"
    said = (done.stderr or done.stdout).decode(errors="replace").strip()[-_TAIL:]
    first = written.strip().splitlines()[0][:_SHOWN]
    return UnsupportedError(
        f"the agent's install command {first!r} {how}: {said}", hint="it may need a program or a network that is not there"
    )


def card_from(done: Completed) -> Mapping[str, Json]:
    """The card that `READS_CARD` printed.

    Raises:
        UnsupportedError: The image has none that can be read without starting it.
    """
    try:
        value = json.loads(done.stdout) if done.ok else None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        said = done.stderr.decode(errors="replace").strip()[-_TAIL:]
        raise UnsupportedError(
            f"the agent's image does not tell its card: {said or 'it printed none'}",
            hint="its server must be importable as a2a_server, with AGENT_CARD, from /app",
        )
    return value
