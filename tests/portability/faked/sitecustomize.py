"""Makes a Python process on Linux look like one on a Mac: what macOS lacks is gone, and there is no /proc and no /sys.

Put first on PYTHONPATH by the tests; never imported by the product. The compiled parts of other packages stay Linux's, so those that choose
them by the platform's name are loaded before the name changes.
"""

import contextlib
import os
import platform
import select
import signal
import socket
import sys
import time
import types

with contextlib.suppress(ImportError):  # picks its compiled part by the platform's name
    import psutil  # noqa: F401
with contextlib.suppress(ImportError):  # so do these
    import sysconfig
    import urllib.request  # noqa: F401

    sysconfig.get_config_vars()


def _no_library(name: str, *_: object) -> str:
    raise ValueError(name)


sys.modules["ctypes.macholib.dyld"] = types.SimpleNamespace(dyld_find=_no_library)  # type: ignore[assignment] # Debian has none
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxy_settings=dict, _get_proxies=dict)  # type: ignore[assignment]

_LACKING = {
    os: (
        *("O_PATH", "O_TMPFILE", "O_DIRECT", "O_NOATIME", "O_LARGEFILE", "O_RSYNC"),
        *("memfd_create", "pidfd_open", "setns", "unshare", "eventfd", "eventfd_read", "eventfd_write", "copy_file_range", "splice"),
        *("listxattr", "getxattr", "setxattr", "removexattr", "getrandom", "posix_fallocate", "posix_fadvise", "pipe2"),
        *("getresuid", "getresgid", "setresuid", "setresgid", "waitid", "P_PIDFD", "fdatasync", "timerfd_create"),
        *(name for name in dir(os) if name.startswith(("sched_", "CLONE_", "MFD_", "EFD_", "RWF_", "TFD_", "SCHED_"))),
    ),
    signal: ("pidfd_send_signal", "SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGPOLL", "SIGSTKFLT", "SIGCLD", "sigtimedwait", "sigwaitinfo"),
    select: tuple(name for name in dir(select) if "epoll" in name.lower()),
    socket: (
        *(
            "SO_PEERCRED",
            "SO_PASSCRED",
            "SO_PEERSEC",
            "SO_DOMAIN",
            "SO_PROTOCOL",
            "SO_MARK",
            "SO_BINDTODEVICE",
            "SOCK_CLOEXEC",
            "SOCK_NONBLOCK",
        ),
        *(name for name in dir(socket) if name.startswith(("AF_VSOCK", "AF_NETLINK", "AF_PACKET", "AF_ALG", "AF_TIPC", "NETLINK_", "PF_"))),
        *("TCP_USER_TIMEOUT", "TCP_QUICKACK", "TCP_CORK", "TCP_DEFER_ACCEPT", "MSG_NOSIGNAL", "MSG_CMSG_CLOEXEC", "MSG_ERRQUEUE"),
    ),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI", "pthread_getcpuclockid"),
}


def _take_away() -> None:
    import fcntl
    import resource

    lacking = {
        **_LACKING,
        fcntl: (
            *(
                name
                for name in dir(fcntl)
                if name.startswith(("F_OFD_", "F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_", "F_SETPIPE", "F_GETPIPE"))
            ),
            *("F_NOTIFY", "F_SETLEASE", "F_GETLEASE", "F_SETSIG", "F_GETSIG", "FICLONE", "FICLONERANGE"),
        ),
        resource: ("prlimit", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_RTTIME", "RLIMIT_SIGPENDING", "RLIMIT_OFILE"),
    }
    for module, names in lacking.items():
        for name in names:
            vars(module).pop(name, None)
    if "posix" in sys.modules:
        for name in lacking[os]:
            vars(sys.modules["posix"]).pop(name, None)


def _in_bytes() -> None:
    """macOS tells the most memory in bytes."""
    import resource

    asked = resource.getrusage

    def getrusage(who: int) -> resource.struct_rusage:
        told = list(asked(who))
        told[2] = int(told[2]) * 1024
        return resource.struct_rusage(told)

    resource.getrusage = getrusage  # type: ignore[assignment]


def _rename() -> None:
    uname = os.uname()
    fields = ("Darwin", uname.nodename, "23.6.0", "Darwin Kernel Version 23.6.0", "arm64")
    faked = type(uname)(fields)
    os.uname = lambda: faked  # type: ignore[assignment]
    platform.uname = lambda: platform.uname_result(*fields)  # type: ignore[attr-defined]
    sys.platform = "darwin"
    platform.system, platform.release, platform.machine = (lambda: fields[0]), (lambda: fields[2]), (lambda: fields[4])
    platform.mac_ver = lambda *_, **__: ("14.6", ("", "", ""), "arm64")  # type: ignore[assignment]


_ABSENT = ("/proc", "/sys/fs", "/sys/kernel")


def _absent(path: object) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    name = os.fsdecode(os.fspath(path))
    return name in _ABSENT or name.startswith(tuple(f"{each}/" for each in _ABSENT))


def _is_psutil(depth: int) -> bool:
    """psutil has its own way on macOS; here it needs Linux's."""
    frame = sys._getframe(depth + 1)
    return str(frame.f_globals.get("__name__", "")).startswith("psutil")


def _no_proc(event: str, arguments: tuple[object, ...]) -> None:
    if event in {"open", "os.listdir", "os.scandir", "os.chdir"} and arguments and _absent(arguments[0]) and not _is_psutil(1):
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))


def _hide() -> None:
    for name in ("stat", "lstat", "readlink"):
        real = getattr(os, name)

        def looked(path, *arguments, _real=real, **options):
            if _absent(path) and not _is_psutil(1):
                raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
            return _real(path, *arguments, **options)

        setattr(os, name, looked)
    allowed = os.access
    os.access = lambda path, *arguments, **options: not _absent(path) and allowed(path, *arguments, **options)
    sys.addaudithook(_no_proc)


def _mend() -> None:
    """Modules of Python's own that were loaded before, and had looked at what is gone now."""
    import selectors
    import tempfile

    selectors.DefaultSelector = selectors.PollSelector
    vars(selectors).pop("EpollSelector", None)
    tempfile._O_TMPFILE_WORKS = False


_take_away()
_mend()
_in_bytes()
_rename()
_hide()
