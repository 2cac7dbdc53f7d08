"""What a confined place sees: its own folder as the root, the machine's /usr over it read-only, and a minimal /etc.

Gives one argument vector that bubblewrap and `helper confine` both understand.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from agent_env.keeper.wiring import proxy_environment
from agent_env.places.endpoint import is_local
from agent_env.sandboxes.confined.descriptors import in_memory
from agent_env.sandboxes.confined.making import HELPER_INSIDE
from agent_env.sandboxes.confined.network import Network, network_files
from agent_env.sandboxes.confined.probe import Machine
from agent_env.sandboxes.confined.processes import MARKER

PYTHON_INSIDE = "/opt/python"
SUDO_INSIDE = "/.agentenv/bin/sudo"
_NOTHING = "nothing"
"""An empty file: no place has libraries that are loaded into every program."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Every call here is paid by every sandbox, so there is no more than programs expect.
_OPEN_FOLDERS = ("tmp", "var/tmp")
_FOLDERS = (
    ".agentenv",
    "app",
    "work",
    "loaded",
    "home",
    "root",
    "run",
    "opt",
    "var",
    "var/lib",
    *_OPEN_FOLDERS,
)

_ETC: Mapping[str, str] = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "/etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}

_MEMORY_FOLDER_BYTES = str(8 << 20)

# Public parts of the machine's /etc that programs below /usr need in order to start, to speak TLS and to tell the time.
_SHARED_ETC = (
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/os-release",
    "/etc/fonts",
)

_SHOWN = ("/usr/", "/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted")
_KEPT_VARIABLES = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TERM")
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ftp_proxy")
_CERTIFICATE_VARIABLES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "NIX_SSL_CERT_FILE",
    "HTTPLIB2_CA_CERTS",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "CARGO_HTTP_CAINFO",
)

SUDO = r"""#!/bin/sh
# This place has one user, root. So sudo runs what it is given.
login=
while [ $# -gt 0 ]; do
  case "$1" in
    --) shift; break ;;
    -u | --user | -g | --group)
      case "$2" in root | 0 | '#0') ;; *) echo "sudo: this place has one user, root; it can't become $2" >&2; exit 1 ;; esac
      shift 2 ;;
    --user=root | --group=root | -uroot) shift ;;
    -C | -D | -h | -p | -R | -r | -T | -t | -U | --chdir | --host | --prompt | --role | --type | --command-timeout)
      case "$1" in -D | --chdir) cd "$2" || exit 1 ;; esac
      shift 2 ;;
    -i | -s | --login | --shell) login=1; shift ;;
    -v | -K | -k | --validate | --reset-timestamp | --remove-timestamp) [ $# -gt 1 ] || exit 0; shift ;;
    -*) shift ;;
    [A-Za-z_]*=*) export "$1"; shift ;;
    *) break ;;
  esac
done
while [ $# -gt 0 ]; do
  case "$1" in [A-Za-z_]*=*) export "$1"; shift ;; *) break ;; esac
done
if [ -n "$login" ]; then
  [ $# -eq 0 ] && exec "${SHELL:-/bin/sh}"
  exec "${SHELL:-/bin/sh}" -c '"$0" "$@"' "$@"
fi
[ $# -gt 0 ] || { echo "sudo: no command given" >&2; exit 1; }
exec "$@"
"""


@dataclass(frozen=True)
class View:
    """A place's root and environment, to be made in `work_dir`."""

    machine: Machine
    work_dir: Path
    sandbox_id: str
    network: Network
    environ: Mapping[str, str]
    """This machine's own environment, of which a few variables are let through."""
    extra: Mapping[str, str]
    """What the sandbox's spec adds to the environment."""
    helper: Path
    sudo: Path
    """The program that is shown as `sudo`; see `write_sudo`."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Files in the work folder itself: name below the root → content."""
    base_uid: int | None = None

    def build(self) -> None:
        """Fills the fresh work folder.

        Raises:
            OSError: It can't be written.
        """
        root = os.open(self.work_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in _FOLDERS:
                os.mkdir(name, 0o755, dir_fd=root)
                os.chmod(name, 0o755, dir_fd=root)  # whatever the user's umask is: tasks find the same place everywhere
            for name in _OPEN_FOLDERS:
                os.chmod(name, 0o1777, dir_fd=root)
            for name, text in self.marks.items():
                _write(name, text.encode(), root)
            if self.base_uid is not None:
                for name in (".", *_FOLDERS, *self.marks):
                    os.chown(name, self.base_uid, self.base_uid, dir_fd=root)
        finally:
            os.close(root)

    @contextmanager
    def files(self) -> Iterator[dict[str, int]]:
        """The files of the place's own /etc: path inside → readable descriptor of its content, open until the context ends.

        They live in memory, as /etc does: there are many, they are small, and making them on a disk is most of what a place costs.
        """
        contents = {path: text.encode() for path, text in {**_ETC, **network_files(self.network, self.sandbox_id)}.items()}
        contents |= {path: source.read_bytes() for path, source in self._copied_certificates().items()}
        with ExitStack() as stack:
            yield {path: stack.enter_context(in_memory(content)) for path, content in contents.items()}

    def arguments(self, files: Mapping[str, int]) -> list[str]:
        """The namespaces and mounts, in the spelling of bubblewrap, with the descriptors of `files`."""
        words = [f"--unshare-{name}" for name in ("user", "pid", "ipc", "uts", "cgroup-try")]
        words += ["--uid", "0", "--gid", "0", "--as-pid-1"]
        words += ["--unshare-net"] if self.network.own_namespace else []
        words += [
            "--hostname",
            self.sandbox_id[:64],
            "--bind",
            str(self.work_dir),
            "/",
            "--size",
            _MEMORY_FOLDER_BYTES,
            "--tmpfs",
            "/etc",
            "--size",
            _MEMORY_FOLDER_BYTES,
            "--tmpfs",
            "/.agentenv",
        ]
        for path, descriptor in files.items():
            words += ["--perms", "0644", "--file", str(descriptor), path]
        words += _machine_mounts()
        if self.machine.python is not None:
            words += ["--ro-bind", str(self.machine.python), PYTHON_INSIDE]
            if any((self.machine.python / "lib").glob("libpython*.so.*")):
                # A shared library of its own is looked for where the interpreter was built to stand, else the machine's is taken.
                words += ["--ro-bind", str(self.machine.python), str(self.machine.python)]
        words += ["--ro-bind", str(self.sudo), SUDO_INSIDE, "--ro-bind", str(self.sudo.with_name(_NOTHING)), "/etc/ld.so.preload"]
        if Path("/usr/bin/sudo").exists():
            words += ["--ro-bind", str(self.sudo), "/usr/bin/sudo"]
        words += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", str(self.helper), HELPER_INSIDE, "--chdir", "/app"]
        return words

    def environment(self) -> dict[str, str]:
        """The place's own environment: an allow-list, never this process's."""
        path = ":".join(([f"{PYTHON_INSIDE}/bin"] if self.machine.python else []) + [_PATH, "/.agentenv/bin"])
        made = {name: self.environ[name] for name in _KEPT_VARIABLES if name in self.environ}
        made.setdefault("LANG", "C.UTF-8")
        made |= {"PATH": path, "HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/sh"}
        # The one user can't give files away, which is what tar, as root, would try.
        made["TAR_OPTIONS"] = "--no-same-owner"
        if self.network.mode != "none":
            made |= proxy_environment() if self.network.how == "keeper" else self._proxies()
            made |= {name: inside for name, _, inside in self._certificates}
        return made | dict(self.extra) | {MARKER: self.sandbox_id}

    def _proxies(self) -> dict[str, str]:
        found = {}
        for name in (*_PROXY_VARIABLES, *(name.upper() for name in _PROXY_VARIABLES)):
            value = self.environ.get(name)
            unreachable = self.network.own_namespace and not name.lower().startswith("no_") and _on_loopback(value or "")
            if value and not unreachable:
                found[name] = value
        return found

    @cached_property
    def _certificates(self) -> tuple[tuple[str, Path | None, str], ...]:
        """Variable, file to be copied in (None where the inside sees it anyway), and path inside."""
        found: list[tuple[str, Path | None, str]] = []
        for name in _CERTIFICATE_VARIABLES:
            value = self.environ.get(name, "")
            if value.startswith(_SHOWN):
                found.append((name, None, value))
            elif value and (path := Path(value)).is_file():
                found.append((name, path, f"/etc/agentenv/{path.name}"))
        return tuple(found)

    def _copied_certificates(self) -> Mapping[str, Path]:
        if self.network.mode == "none":
            return {}
        return {inside: source for _, source, inside in self._certificates if source is not None}


@cache
def _machine_mounts() -> tuple[str, ...]:
    """The machine's programs and the public parts of its /etc, the same for every place."""
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_dir():
            # A mount also where the machine has a link: a link could be replaced, and with it the loader of every later program.
            words += ["--ro-bind", str(path.resolve()), str(path)]
    for name in _SHARED_ETC:
        path = Path(name)
        if path.is_symlink() and path.resolve().is_relative_to("/usr") and path.exists():
            words += ["--symlink", str(path.resolve()), name]  # a link costs less than a mount
        elif path.exists():
            words += ["--ro-bind", name, name]
    return tuple(words)


def write_sudo(folder: Path) -> Path:
    """The `sudo` of every place: one file of the installation, replaced when its text changes. Beside it stands an empty file.

    Raises:
        OSError: It can't be written.
    """
    path = folder / f"sudo-{hashlib.sha256(SUDO.encode()).hexdigest()[:16]}"
    path.with_name(_NOTHING).touch()
    if not path.exists():
        fresh = path.with_name(f".sudo-{os.getpid()}-{os.urandom(4).hex()}")
        fresh.write_text(SUDO)
        fresh.chmod(0o755)
        fresh.replace(path)
    return path


def _write(name: str, content: bytes, folder: int) -> None:
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        while content:
            content = content[os.write(handle, content) :]
    finally:
        os.close(handle)


def host_environment(environ: Mapping[str, str], work_dir: Path, sandbox_id: str) -> dict[str, str]:
    """The environment of a place that is this machine itself: the same allow-list, with the machine's own paths."""
    names = (*_KEPT_VARIABLES, *_PROXY_VARIABLES, *(name.upper() for name in _PROXY_VARIABLES), *_CERTIFICATE_VARIABLES)
    made = {name: environ[name] for name in names if name in environ}
    return made | {"PATH": environ.get("PATH", _PATH), "HOME": str(work_dir), MARKER: sandbox_id}


def _on_loopback(proxy: str) -> bool:
    return is_local(proxy if "://" in proxy else f"http://{proxy}")
