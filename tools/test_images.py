"""Base images that the tests build upon, made from this machine's packages where no registry can be reached. Standard library only.

    python3 tools/test_images.py [NAME ...]

Each image gets the name that a Dockerfile would ask a registry for, so an image of that name which is here already is left as it is. What
can't be made says why, and the tests that need it are skipped by its name.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import http.client
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

ENGINE = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS")
DEBIAN = "debian:bookworm-slim"
LIBRARIES = (
    *("ca-certificates", "libssl3", "libffi8", "libsqlite3-0", "libbz2-1.0", "liblzma5", "libreadline8", "zlib1g", "libncursesw6"),
    *("libuuid1", "netbase", "tzdata", "libstdc++6", "libatomic1"),
)
LEFT_OUT = ("doc", "man", "locale", "info")


class UnmadeError(Exception):
    """Why an image can't be made here."""


class _Connection(http.client.HTTPConnection):
    """HTTP over the engine's socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(ENGINE.removeprefix("unix://"))


def ask(method: str, path: str, body: IO[bytes] | None = None, *, seconds: float = 900.0) -> tuple[int, bytes]:
    """One request to the engine: its status and answer."""
    connection = _Connection("engine", timeout=seconds)
    try:
        connection.request(method, path, body=body, headers={"Content-Type": "application/x-tar"} if body is not None else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError as error:
        raise UnmadeError(f"no container engine answers on {ENGINE}: {error}") from error
    finally:
        connection.close()


def is_here(name: str) -> bool:
    """The engine holds an image of that name."""
    return ask("GET", f"/images/{name}/json")[0] == 200


def _checked(name: str, status: int, said: bytes) -> None:
    if status != 200 or b'"error"' in said:
        raise UnmadeError(f"{name}: the engine said {status}: {said[-500:].decode(errors='replace')}")


def _needs(command: str) -> None:
    if shutil.which(command) is None or os.geteuid() != 0:
        raise UnmadeError(f"needs {command}, and root")


def debian() -> None:
    """A small Debian with the libraries that interpreters are linked against."""
    _needs("mmdebstrap")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root.tar"
        options = ["--quiet", "--variant=minbase", f"--include={','.join(LIBRARIES)}", "--aptopt=APT::Install-Recommends false"]
        options += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in LEFT_OUT]
        if CERTIFICATES.exists():
            options.append(f"--customize-hook=upload {CERTIFICATES} {CERTIFICATES}")
        options.append('--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*')
        command = ["mmdebstrap", *options, "bookworm", str(root)]
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise UnmadeError(f"mmdebstrap: {done.stderr[-500:]}")
        changes = ['CMD ["bash"]', "ENV LANG=C.UTF-8", *(f"ENV {name}={CERTIFICATES}" for name in VARIABLES if CERTIFICATES.exists())]
        query = "&".join(f"changes={change.replace(' ', '%20').replace('[', '%5B').replace(']', '%5D')}" for change in changes)
        repository, tag = DEBIAN.split(":")
        with root.open("rb") as archive:
            _checked(DEBIAN, *ask("POST", f"/images/create?fromSrc=-&repo={repository}&tag={tag}&{query.replace(chr(34), '%22')}", archive))


def build(name: str, dockerfile: str, add: Callable[[tarfile.TarFile], None], *, network: str = "none") -> None:
    """Builds an image from a Dockerfile and what `add` puts beside it."""
    ensure(DEBIAN)
    with tempfile.TemporaryFile() as context:
        with tarfile.open(fileobj=context, mode="w") as archive:
            data = dockerfile.encode()
            entry = tarfile.TarInfo("Dockerfile")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
            add(archive)
        context.seek(0)
        _checked(name, *ask("POST", f"/build?t={name}&rm=1&forcerm=1&networkmode={network}", context))


def _interpreter(version: str) -> Path:
    """The newest interpreter of a version that was built on this machine."""
    roots = [os.environ.get("PYENV_ROOT"), str(Path.home() / ".pyenv"), "/root/.pyenv", "/opt/pyenv"]
    found = [path for root in roots if root for path in Path(root).glob(f"versions/{version}.*")]
    if not found:
        raise UnmadeError(f"no Python {version} was built on this machine (pyenv)")
    return max(found, key=lambda path: [int(part) for part in path.name.split(".") if part.isdigit()])


def python(version: str) -> None:
    """The image that a registry calls `python:<version>-slim`."""
    root = _interpreter(version)

    def keep(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = entry.name.split("/")
        left_out = {"__pycache__", "test", "idlelib", "turtledemo", "site-packages"}.intersection(parts) or entry.name.endswith(".a")
        entry.uid = entry.gid = 0
        return None if left_out else entry

    def add(archive: tarfile.TarFile) -> None:
        for name in ("lib", "include", f"bin/python{version}"):
            archive.add(root / name, f"local/{name}", filter=keep)

    build(
        f"python:{version}-slim",
        f"""FROM {DEBIAN}
COPY local/ /usr/local/
WORKDIR /usr/local/bin
RUN ldconfig && ln -sf python{version} python3 && ln -sf python3 python && python -m ensurepip >/dev/null 2>&1 && ln -sf pip3 pip
WORKDIR /
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["python3"]
""",
        add,
    )


def node() -> None:
    """The image that a registry calls `node:20-slim`, of this machine's own Node.js."""
    program = shutil.which("node")
    modules = next((path for path in map(Path, ("/usr/lib/node_modules", "/usr/share/nodejs")) if (path / "npm").is_dir()), None)
    if program is None or modules is None:
        raise UnmadeError("there is no node with npm on this machine")

    def add(archive: tarfile.TarFile) -> None:
        archive.add(os.path.realpath(program), "local/bin/node")
        archive.add(modules / "npm", "local/lib/node_modules/npm")

    build(
        "node:20-slim",
        f"""FROM {DEBIAN}
COPY local/ /usr/local/
WORKDIR /usr/local/bin
RUN for name in npm npx; do ln -s ../lib/node_modules/npm/bin/$name-cli.js $name; done && node --version
WORKDIR /
CMD ["node"]
""",
        add,
    )


ENTRYPOINT = """#!/bin/sh
# What the published image does with its variables: a cluster for POSTGRES_USER, its database, and the scripts of the init folder.
set -e
PGDATA=${PGDATA:-/var/lib/postgresql/data}; export PGDATA
user=${POSTGRES_USER:-postgres}; database=${POSTGRES_DB:-$user}
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA" /var/run/postgresql
    chown -R postgres "$PGDATA" /var/run/postgresql
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ "${1:-postgres}" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
    chmod 700 "$PGDATA"
    file=$(mktemp); printf '%s' "$POSTGRES_PASSWORD" >"$file"
    initdb --username="$user" --pwfile="$file" --auth-host=scram-sha-256 --auth-local=trust --encoding=UTF8 >/dev/null
    rm "$file"
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl -w -s start -o "-c listen_addresses=''"
    [ "$database" = postgres ] || createdb --username="$user" "$database"
    for script in /docker-entrypoint-initdb.d/*; do
        case $script in
            *.sql) psql -v ON_ERROR_STOP=1 --username="$user" --dbname="$database" --file="$script" ;;
            *.sh) . "$script" ;;
        esac
    done
    pg_ctl -w -s -m fast stop
fi
if [ "${1:-postgres}" = postgres ]; then
    [ $# -eq 0 ] || shift
    exec postgres -c listen_addresses='*' "$@"
fi
exec "$@"
"""


def postgres() -> None:
    """A PostgreSQL server that takes the variables of the published image."""

    def add(archive: tarfile.TarFile) -> None:
        entry = tarfile.TarInfo("docker-entrypoint.sh")
        entry.mode, entry.size = 0o755, len(ENTRYPOINT.encode())
        archive.addfile(entry, io.BytesIO(ENTRYPOINT.encode()))

    build(
        "postgres:16-alpine",
        f"""FROM {DEBIAN}
RUN apt-get update -q >/dev/null && apt-get install -y -q --no-install-recommends postgresql-15 >/dev/null && rm -rf /var/lib/postgresql/15
ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PGDATA=/var/lib/postgresql/data
COPY docker-entrypoint.sh /usr/local/bin/
VOLUME /var/lib/postgresql/data
EXPOSE 5432
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
""",
        add,
        network="host",
    )


MAKERS: dict[str, Callable[[], None]] = {
    DEBIAN: debian,
    "python:3.12-slim": lambda: python("3.12"),
    "node:20-slim": node,
    "postgres:16-alpine": postgres,
}


def ensure(name: str) -> None:
    """Has an image here. Raises `UnmadeError`."""
    if is_here(name):
        return
    MAKERS[name]()


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Any number of test processes may ask."""
    with open(Path(tempfile.gettempdir()) / f"agent-env-test-images-{os.getuid()}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Makes what is missing; 1 when something could not be made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MAKERS)}; all when absent")
    failed = 0
    with one_at_a_time():
        for name in parser.parse_args().names or MAKERS:
            try:
                ensure(name)
            except UnmadeError as error:
                failed = 1
                sys.stderr.write(f"{name} can't be made here: {error}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
