#!/bin/sh
# Installs the system packages that the tests use, as root on Debian or a derivative. Anywhere else, or where they can't be fetched, it
# says what is missing and goes on: a test that needs an absent part then skips, naming the capability.
set -eu

needed=""
want() { # want COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || needed="$needed $2"
}
want bwrap bubblewrap
want slirp4netns slirp4netns
want newuidmap uidmap
want qemu-aarch64-static qemu-user-static
want setpriv util-linux
want busybox busybox-static
want mmdebstrap mmdebstrap
want podman podman
# An engine that is there already is used, whoever made it; another one beside it would not be welcome.
if [ ! -S /var/run/docker.sock ] && [ -z "${DOCKER_HOST:-}" ]; then
    want dockerd docker.io
    want iptables iptables
fi
want docker-registry docker-registry
want zstd zstd
[ -n "$(ls -d /usr/lib/postgresql/*/bin/initdb 2>/dev/null || true)" ] || needed="$needed postgresql"

start_engine() { # tests start it too; here its first start is not in any test's time
    sh "$(dirname "$0")/start-test-engine.sh" && python3 "$(dirname "$0")/test_images.py" || true
}

if [ -z "$needed" ]; then
    start_engine
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "not installed here (needs root on Debian):$needed" >&2
    start_engine
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() {
    apt-get update -q || return 1
    # A database server that the package would start by itself is not wanted: the tests make their own.
    if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
        mkdir -p /etc/postgresql-common && echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf || return 1
    fi
    # shellcheck disable=SC2086
    apt-get install -q -y --no-install-recommends $needed
}
install >/dev/null || echo "not installed here (apt-get failed, see above):$needed" >&2
start_engine
