"""Removes a sandbox of this machine whole: processes, control groups, folders. Never follows a link, never acts on a number alone."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

from agent_env.clock import SystemClock
from agent_env.defaults import Limits
from agent_env.errors import DeadlineError, InfrastructureError
from agent_env.sandboxes.confined import limits as control
from agent_env.sandboxes.confined.processes import Identity, marked
from agent_env.sandboxes.confined.records import HOST, Facts, Records

_DEEPEST = 64
"""A folder below this is first moved up, so that depth costs no descriptors and no stack."""


def recorded(facts: Facts) -> Iterator[Identity]:
    """The processes that a record names, PID 1 first: with it the kernel ends everything in its namespace."""
    if facts.rebooted:
        return
    for data in (facts.first, facts.guardian, *facts.helpers):
        identity = Identity.load(data)
        if identity is not None:
            yield identity


def stop(facts: Facts, *, limits: Limits) -> None:
    """Ends every process of the sandbox.

    Raises:
        InfrastructureError: One of them can't be ended (names it).
    """
    clock = SystemClock()
    until = clock.monotonic() + limits.cleanup_seconds
    _ask_to_end(facts, limits)
    # A complete record of a confined place names everything there can be; otherwise this machine is searched.
    complete = facts.phase == "running" and facts.confiner not in {"", HOST}
    while True:
        found = [*recorded(facts)]
        if not complete:
            found += marked(facts.sandbox_id)
        found += filter(None, map(Identity.of, control.members(facts.cgroups)))
        living = [identity for identity in dict.fromkeys(found) if identity.alive]
        if not living:
            return
        for identity in living:
            identity.kill()
        left = [identity for identity in living if not identity.wait_gone(until - clock.monotonic())]
        if clock.monotonic() > until:  # what was ended is there again, or said to be, each time that is looked
            left = left or living
        if left:
            raise InfrastructureError(
                f"process {left[0].pid} of sandbox {facts.sandbox_id} can't be ended",
                concerns=facts.sandbox_id,
                hint="it may wait on a dead disk; try again later: `agent-env gc`",
            )


def _ask_to_end(facts: Facts, limits: Limits) -> None:
    """What ends more when it is asked: a guardian its place with the networking, a helper that is no PID 1 its commands."""
    first, guardian = Identity.load(facts.first), Identity.load(facts.guardian)
    if facts.rebooted or first is None or guardian is None:
        return
    guardian.kill(signal.SIGTERM)
    guardian.wait_gone(limits.kill_grace_seconds)


def remove_tree(path: Path, *, until: float) -> bool:
    """Removes a folder and all below it, also unreadable and very deep ones. A link is removed, not followed.

    Args:
        path: What to remove.
        until: When to give up, on the monotonic clock.

    Returns:
        Whether there was anything.

    Raises:
        DeadlineError: It took too long; what was removed stays removed.
        InfrastructureError: Something can't be removed (names it).
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    try:
        if not stat.S_ISDIR(found.st_mode):
            path.unlink()
            return True
        top = _open_folder(path, None)
        try:
            _Emptying(top, until).empty(path, top)
        finally:
            os.close(top)
    except FileNotFoundError:
        return True  # somebody else removes it too
    except OSError as error:
        raise InfrastructureError(f"can't remove {path}: {error.strerror} at {error.filename!r}", concerns=str(path)) from error
    return True


def _open_folder(name: str | Path, parent: int | None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        # Own, but closed to its owner. O_PATH needs no permission of the folder itself, and its /proc entry is no link to elsewhere.
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            Path(f"/proc/self/fd/{handle}").chmod(0o700)
        finally:
            os.close(handle)
        return os.open(name, flags, dir_fd=parent)


class _Emptying:
    """Empties one tree through descriptors alone, so that no name is looked up twice."""

    def __init__(self, top: int, until: float) -> None:
        self._top = top
        self._until = until
        self._clock = SystemClock()

    def empty(self, path: Path, top: int) -> None:
        """Removes everything in the folder, and then the folder, again and again while something is added."""
        while not _removed(path, None):
            self._clear(top, 0)

    def _clear(self, folder: int, depth: int) -> None:
        with os.scandir(folder) as listing:
            entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
        if not os.fstat(folder).st_mode & stat.S_IWUSR:
            os.fchmod(folder, 0o700)
        for name, is_folder in entries:
            with contextlib.suppress(FileNotFoundError):
                self._check()
                if is_folder:
                    self._remove_folder(name, folder, depth)
                else:
                    os.unlink(name, dir_fd=folder)

    def _remove_folder(self, name: str, folder: int, depth: int) -> None:
        """Most folders of a sandbox are empty, so it is not looked into before it has to be."""
        while not _removed(name, folder):
            self._check()
            if depth >= _DEEPEST:
                os.rename(name, f".moved-{secrets.token_hex(8)}", src_dir_fd=folder, dst_dir_fd=self._top)
                return
            child = _open_folder(name, folder)
            try:
                self._clear(child, depth + 1)
            finally:
                os.close(child)

    def _check(self) -> None:
        if self._clock.monotonic() > self._until:
            raise DeadlineError("removing a sandbox's folder did not end in time")


def _removed(name: str | Path, parent: int | None) -> bool:
    """Removes a folder that is empty. Returns whether it was."""
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        return False
    return True


def remove_record(records: Records, sandbox_id: str, *, until: float) -> None:
    """Removes the record, last of all. Raises as `remove_tree`."""
    folder = records.retire(sandbox_id)
    if folder is not None:
        remove_tree(folder, until=until)
