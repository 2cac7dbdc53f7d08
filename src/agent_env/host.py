"""This machine's boot, processes and sockets, told in one way on Linux and elsewhere. Only here is it asked which system this is.

Linux is read directly, since every command does so; elsewhere psutil knows how.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

IS_LINUX = sys.platform == "linux"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_GONE = {b"Z", b"X", b"x"}
"""States of /proc/<pid>/stat in which a process runs no more."""
_ADDRESS_BYTES = 103
"""(unix(4) of macOS) A socket's address holds 104 bytes with its end there, 108 on Linux."""
_UUID_BYTES = 64
_RAW_UUID_BYTES = 16


def system_name() -> str:
    """What this system is called: `Linux`, `macOS`, …"""
    return {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)


@cache
def boot_id() -> str:
    """Which boot of this machine this is: after another one, no recorded process exists. Empty where nothing tells."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return "" if IS_LINUX else _boot_session()


def _boot_session() -> str:
    """The name that macOS gives each boot; of others the moment of the boot has to do."""
    import ctypes

    import psutil

    ask = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    found, size = ctypes.create_string_buffer(_UUID_BYTES), ctypes.c_size_t(_UUID_BYTES)
    if ask is not None and ask(b"kern.bootsessionuuid", found, ctypes.byref(size), None, 0) == 0:
        return found.value.decode().lower()
    return f"since-{psutil.boot_time():.0f}"


@cache
def machine_id() -> str:
    """This machine's own id, which neither a boot nor another host name changes. Empty where nothing tells."""
    for path in _MACHINE_ID_FILES:
        with contextlib.suppress(OSError):
            if text := path.read_text().strip():
                return text
    return "" if IS_LINUX else _host_uuid()


def _host_uuid() -> str:
    """The id that macOS gives its hardware (gethostuuid(2)); empty elsewhere."""
    import ctypes

    ask = getattr(ctypes.CDLL(None), "gethostuuid", None)
    found, wait = ctypes.create_string_buffer(_RAW_UUID_BYTES), (ctypes.c_long * 2)(0, 0)
    return found.raw.hex() if ask is not None and ask(found, wait) == 0 else ""


def boot_seconds() -> float:
    """Seconds since boot, counting the time in which the machine was suspended. (macOS' monotonic clock counts it by itself.)"""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def start_time(pid: int) -> int | None:
    """When the process that has this number now started, which tells it from every other that had or gets it.

    Returns:
        Hundredths of a second: since the boot on Linux (clock ticks), since 1970 elsewhere. None when there is no such process, or only
        what is left of one.
    """
    if not IS_LINUX:
        return _start_time_elsewhere(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            stat = file.read()
    except OSError:
        return None
    # The program's name stands in brackets and may hold spaces and brackets itself.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in _GONE else int(fields[19])


def _start_time_elsewhere(pid: int) -> int | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD} else round(process.create_time() * 100)
    except psutil.Error:
        return None


def send_signal(pid: int, started: int, number: int = signal.SIGKILL) -> bool:
    """Signals the process that has this number and started then, and on Linux nobody else even if it ends meanwhile.

    Returns:
        Whether it was there.
    """
    with held(pid) as handle, contextlib.suppress(ProcessLookupError):
        if start_time(pid) != started:
            return False
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
        return True
    return False


def wait_gone(pid: int, started: int, seconds: float) -> bool:
    """Waits for the end of the process that has this number and started then. Returns whether it ended in time."""
    with held(pid) as handle:
        if start_time(pid) != started:
            return True
        if handle is not None:
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            return bool(poller.poll(max(seconds, 0.0) * 1000)) or start_time(pid) != started
    import psutil

    with contextlib.suppress(psutil.Error):
        psutil.Process(pid).wait(max(seconds, 0.0))
    return start_time(pid) != started


@contextlib.contextmanager
def held(pid: int) -> Iterator[int | None]:
    """A hold on a process, so that its number is nobody else's meanwhile; None where the system has none, or there is no process."""
    handle = None
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """An address of a unix socket at a path of any length, to bind or connect while the block lasts.

    Raises:
        OSError: The socket's folder is not there.
    """
    name = os.fspath(path)
    if len(os.fsencode(name)) <= _ADDRESS_BYTES:
        yield name
    elif IS_LINUX:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}/{path.name}"
        finally:
            os.close(folder)
    else:
        import tempfile

        path.parent.stat()
        with tempfile.TemporaryDirectory(prefix="ae-", dir="/tmp") as short:
            link = Path(short, "d")
            link.symlink_to(path.parent.absolute())
            yield f"{link}/{path.name}"
