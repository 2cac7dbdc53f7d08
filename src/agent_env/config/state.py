"""Where this user's state lies, also where there is no home or none that can be written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from agent_env.errors import ConfigError
from agent_env.ids import home_folder

STATE_VARIABLE = "AGENT_ENV_STATE_ROOT"
_ANOTHER = f"set {STATE_VARIABLE} to the absolute path of a folder that this user can write, or unset it for the usual place"
NOWHERE = Path("/dev/null/agent-env")
"""The state folder of a configuration that has none, so that what else is wrong can be looked for. Nothing can be made there."""


def state_root(environ: Mapping[str, str]) -> tuple[Path, tuple[str, ...]]:
    """Where runs, objects and trust are kept, and what there is to say about it.

    `AGENT_ENV_STATE_ROOT`, else `$XDG_STATE_HOME/agent-env`, else `~/.local/state/agent-env`; where that can't be written (a read-only or
    missing home), a private folder of the temporary directory, with a note (TP-12).

    Raises:
        ConfigError: `AGENT_ENV_STATE_ROOT` can't be written, or somebody else holds the private folder's name.
    """
    named = environ.get(STATE_VARIABLE)
    if named:
        if not named.startswith("/"):
            raise ConfigError(f"{STATE_VARIABLE} is an absolute path, not {named!r}", hint=_ANOTHER)
        obstacle = _obstacle(Path(named))
        if obstacle is not None:
            raise ConfigError(f"{STATE_VARIABLE} names {named!r}, where no state can be kept: {obstacle}", hint=_ANOTHER)
        return Path(named), ()
    wanted = _usual_root(environ)
    if wanted is not None and _obstacle(wanted) is None:
        return wanted, ()
    uid = os.getuid()
    private = Path(environ.get("TMPDIR") or "/tmp") / f"agent-env-{uid}"
    try:
        private.mkdir(mode=0o700, exist_ok=True)
        status = private.lstat()
    except OSError as error:
        raise ConfigError(
            f"there is no place for the state: {error.strerror}", concerns=str(private), hint=f"set {STATE_VARIABLE}"
        ) from error
    if private.is_symlink() or status.st_uid != uid or status.st_mode & 0o077:
        raise ConfigError(f"{private} is not a private folder of this user", hint=f"remove it, or set {STATE_VARIABLE}")
    why = f"{wanted} can't be written" if wanted else "this user has no home folder"
    unseen = f"; what {wanted} holds is not looked at" if wanted is not None and _holds_something(wanted) else ""
    advice = f"which a reboot may empty{unseen}; set {STATE_VARIABLE} to keep them elsewhere"
    return private, (f"{why}, so runs are kept in {private}, {advice}",)


def _usual_root(environ: Mapping[str, str]) -> Path | None:
    state_home = environ.get("XDG_STATE_HOME", "")
    if state_home.startswith("/"):
        return Path(state_home) / "agent-env"
    home = home_folder(environ)
    return home / ".local/state/agent-env" if home is not None else None


def _holds_something(folder: Path) -> bool:
    with suppress(OSError):
        return any(folder.iterdir())
    return False


def _obstacle(path: Path) -> str | None:
    """Why this user can write neither the folder nor the nearest one above that exists; None when they can."""
    # Not `Path.exists`, which raises below a folder that this user can't search, such as another one's home.
    nearest = next((parent for parent in (path, *path.parents) if os.access(parent, os.F_OK)), Path("/"))
    if not nearest.is_dir():
        return f"{nearest} is no folder"
    return None if os.access(nearest, os.W_OK | os.X_OK) else f"this user can't write {nearest}"
