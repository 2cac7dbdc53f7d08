/* What a fresh place still lacks before its first command, as the guardian tells it over a socket that nobody else has; later it tells what it
 * ends there (limits.c).
 *
 * The control groups are joined while files are moved already. Networking is started when a command first wants to run: for a place that
 * lives shortly it would be most of the cost, and many places run no command at all. Whoever asks for a command meanwhile is held back,
 * whichever connection he came by. */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "helper.h"
#include "ready.h"

enum network { NETWORK_NONE, NETWORK_ASLEEP, NETWORK_ASKED, NETWORK_READY, NETWORK_FAILED };

static struct watch guardian = {.fd = -1, .kind = WATCH_GUARDIAN};
static enum network network;
static bool unlimited;
static uint64_t wait_ms, asked_ms;

/* Says that something waits for others, and is looked at again by then. */
bool hold_back(int ms)
{
    if (!g.held_back || ms < g.held_back) g.held_back = ms;
    return true;
}

bool ready_begin(int fd)
{
    if (fd < 0) return true;
    guardian.fd = fd;
    unlimited = g.config.flags & C_LIMITED;
    wait_ms = tlv_u64(g.config.whole, K_NETWORK_MS, 0);
    network = wait_ms ? NETWORK_ASLEEP : NETWORK_NONE;
    if (fcntl(fd, F_SETFL, O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC)) return false;
    watch_set(&guardian, EPOLLIN);
    return true;
}

static void wake_network(void)
{
    char word = TELL_WAKE;
    network = send(guardian.fd, &word, 1, MSG_NOSIGNAL) == 1 ? NETWORK_ASKED : NETWORK_FAILED;
    asked_ms = g.now_ms;
}

bool ready_holds_back(const struct conn *c, uint8_t type)
{
    if (!c->greeted || c->relay || (type != F_EXEC && type != F_ENTRY && type != F_NETWORK)) return false;
    if (network == NETWORK_ASLEEP) wake_network();
    if (network == NETWORK_ASKED && g.now_ms - asked_ms >= wait_ms) network = NETWORK_FAILED;
    if (!unlimited && network != NETWORK_ASKED) return false;
    return hold_back(HELD_BACK_MS);
}

/* The end of the socket is the end of the guardian, and so of the place: also of one whose guardian was killed before the kernel had been
 * told to end the place with it. */
void ready_event(void)
{
    char word;
    ssize_t n = 0;
    if (guardian.fd < 0) return;
    while ((n = read(guardian.fd, &word, 1)) == 1) {
        if (word == TELL_LIMITED) unlimited = false;
        else if (word == TELL_MEMORY || word == TELL_DISK) limits_told(word);
        else if (network < NETWORK_READY) network = word == TELL_NETWORK ? NETWORK_READY : NETWORK_FAILED;
    }
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
    watch_close(&guardian);
    g.stopping = true;
    g.stop_at = g.now_ms;
}

bool ready_networked(void) { return network != NETWORK_FAILED; }

/* One that nobody asked for may be missing; one that a policy demands may not. */
bool ready_refuses(void) { return network == NETWORK_FAILED && g.config.flags & C_DEMANDED; }
