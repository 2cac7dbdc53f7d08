#!/bin/sh
# Has a container engine answer on this machine's usual socket, for the tests. One that answers already is used as it is; otherwise, as
# root and where it is installed, Docker's is started in the background and left running. Says why not, and ends with 1, anywhere else.
# Where DOCKER_HOST names another engine, that is the one: nothing is started beside it.
# Only one start happens at a time, so any number of test processes may call this.
set -eu

usual=unix:///var/run/docker.sock
engine=${DOCKER_HOST:-$usual}
socket=${engine#unix://}

answers() { # without a client: the engine's own answer to a ping
    [ -S "$socket" ] && perl -MIO::Socket::UNIX -e '
        alarm 5;
        my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or exit 1;
        print $s "GET /_ping HTTP/1.0\r\n\r\n"; $s->flush;
        exit(<$s> =~ / 200 / ? 0 : 1)' "$socket" 2>/dev/null
}

answers && exit 0
if [ "$engine" != "$usual" ]; then
    echo "no engine is started beside the one that DOCKER_HOST names, $engine, which doesn't answer on a socket of this machine" >&2
    exit 1
fi
daemon=$(command -v dockerd || ls /usr/sbin/dockerd 2>/dev/null || true)
if [ -z "$daemon" ] || [ "$(id -u)" -ne 0 ]; then
    echo "no container engine answers, and none can be started here (needs dockerd, and root)" >&2
    exit 1
fi
exec 9>/run/agent-env-test-engine.lock
flock 9
answers && exit 0
log=/var/log/agent-env-test-engine.log
# It outlives whoever started it, and holds none of their descriptors: a lock of theirs would never be free again.
setsid perl -MPOSIX -e 'POSIX::close($_) for 3 .. 1023; exec @ARGV or exit 127' "$daemon" </dev/null >"$log" 2>&1 &
started=$!
for _ in $(seq 300); do
    answers && exit 0
    kill -0 "$started" 2>/dev/null || break
    sleep 0.1
done
echo "the container engine did not start; $log ends with:" >&2
tail -n 5 "$log" >&2
exit 1
