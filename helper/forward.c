/* TCP of the place's loopback over a caller's stream, both ways and half-closed as it is, in the loop itself: no process a connection.
 *
 * LISTEN_TCP takes a port of loopback; DONE says that it is taken, and each connection to it is told as ACCEPTED with a stream of its own
 * (numbers from FORWARD_STREAM, which callers never choose). On that stream STDOUT is what the place's program sends, STDIN_EOF (from us)
 * its half-close, EXIT the end; STDIN, STDIN_EOF, CREDIT and KILL are the caller's. KILL after STDIN_EOF lets what was sent arrive, and is
 * otherwise a reset.
 *
 * A relay's port outlives its connection for a moment: whoever connects while the keeper is being replaced waits, and is not refused. So
 * does an accepted connection of which its caller said nothing yet: with a window of 0 no byte of it is taken before the first CREDIT, and
 * the next relay is told of it anew. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "helper.h"

#define MAX_FORWARDS 1024
#define PARKED_MS 30000
#define ACCEPT_AT_ONCE 16
#define READS_AT_ONCE 4
#define CREDIT_STEP (IN_WINDOW / 4)

struct port {
    struct port *next;
    struct watch watch;
    struct conn *conn; /* NULL: parked until `until_ms` */
    uint32_t stream;
    uint64_t number, window, until_ms;
    bool dead;
};

struct forward {
    struct forward *next;
    struct conn *conn;
    struct port *port; /* which it came in by, while nothing was said of it */
    struct watch watch;
    uint32_t stream;
    struct buf pending; /* for the place, not taken by its socket yet */
    bool in_eof, shut, out_eof, leaving, dead; /* leaving: its caller is done with it, and what it sent is still to be taken */
    uint64_t credit, in_credit;
};

static struct port *ports;
static struct forward *forwards;
static unsigned forward_count, next_stream;

static bool out_full(const struct conn *c) { return c->out.len - c->out.off >= OUT_HIGH; }

static struct forward *find(const struct conn *c, uint32_t stream)
{
    for (struct forward *f = forwards; f; f = f->next)
        if (f->conn == c && f->stream == stream && !f->dead) return f;
    return NULL;
}

/* -------- connections -------- */

/* Stop accepting where there is no room; what waits is accepted when there is. */
static void ports_refresh(void)
{
    for (struct port *p = ports; p; p = p->next) watch_set(&p->watch, p->conn && forward_count < MAX_FORWARDS ? EPOLLIN : 0);
}

static void tell_end(struct conn *c, uint32_t stream, int error)
{
    uint8_t p[64] = {0};
    put32(p + 4, (uint32_t)error);
    conn_send(c, F_EXIT, stream, p, sizeof p);
}

static void finish(struct forward *f, int error)
{
    if (f->dead) return;
    f->dead = true;
    if (f->conn) tell_end(f->conn, f->stream, error);
    watch_close(&f->watch);
    if (forward_count-- == MAX_FORWARDS) ports_refresh();
}

static void abort_it(struct forward *f, int error)
{
    struct linger now = {.l_onoff = 1};
    if (!f->dead) setsockopt(f->watch.fd, SOL_SOCKET, SO_LINGER, &now, sizeof now); /* the program sees a reset, not an orderly end */
    finish(f, error);
}

static void refresh(struct forward *f)
{
    if (f->dead || !f->conn) return;
    if (f->in_eof && !f->shut && f->pending.len == f->pending.off) f->shut = !shutdown(f->watch.fd, SHUT_WR) || errno == ENOTCONN;
    if (f->shut && (f->out_eof || f->leaving)) return finish(f, 0);
    bool wanted = f->leaving || (f->credit && !out_full(f->conn));
    watch_set(&f->watch, (!f->out_eof && wanted ? EPOLLIN : 0) | (f->pending.len > f->pending.off ? EPOLLOUT : 0));
}

/* Bytes for a caller that wants none any more: left unread they would turn the orderly close into a reset. */
static void pull_away(struct forward *f)
{
    static uint8_t away[CHUNK];
    ssize_t n = read(f->watch.fd, away, sizeof away);
    if (n < 0 && errno != EAGAIN && errno != EINTR) abort_it(f, errno);
    if (!n) f->out_eof = true;
}

/* One read, straight into the caller's buffer. Returns false when there is nothing more to do now. */
static bool pull(struct forward *f)
{
    uint64_t want = f->credit < CHUNK ? f->credit : CHUNK;
    uint8_t *to = want && !f->out_eof && !out_full(f->conn) ? buf_room(&f->conn->out, 9 + want) : NULL;
    if (!to) return false;
    ssize_t n = read(f->watch.fd, to + 9, want);
    if (n < 0 && errno == EINTR) return true;
    if (n < 0) {
        if (errno != EAGAIN) abort_it(f, errno);
        return false;
    }
    if (!n) {
        f->out_eof = true;
        conn_send(f->conn, F_STDIN_EOF, f->stream, NULL, 0);
        return false;
    }
    f->credit -= (uint64_t)n;
    frame_put(&f->conn->out, F_STDOUT, f->stream, (size_t)n);
    return true;
}

static void push(struct forward *f)
{
    struct buf *b = &f->pending;
    uint64_t passed = 0;
    while (!f->dead && b->len > b->off) {
        ssize_t n = write(f->watch.fd, b->data + b->off, b->len - b->off);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) return abort_it(f, errno);
        passed += (uint64_t)n;
        buf_take(b, (size_t)n);
    }
    f->in_credit += passed;
    if (f->in_credit < CREDIT_STEP) return;
    uint8_t p[8];
    put64(p, f->in_credit);
    conn_send(f->conn, F_CREDIT, f->stream, p, sizeof p);
    f->in_credit = 0;
}

static void announce(struct forward *f)
{
    uint8_t told[4];
    put32(told, f->stream);
    conn_send(f->conn, F_ACCEPTED, f->port->stream, told, sizeof told);
    refresh(f);
}

static void accept_one(struct port *p, int fd)
{
    struct forward *f = calloc(1, sizeof *f);
    int on = 1;
    if (!f) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    f->conn = p->conn;
    f->port = p;
    f->stream = FORWARD_STREAM | (next_stream++ & (FORWARD_STREAM - 1));
    f->credit = p->window;
    f->watch = (struct watch){.fd = fd, .kind = WATCH_FORWARD, .owner = f};
    f->next = forwards;
    forwards = f;
    forward_count++;
    announce(f);
}

/* -------- ports -------- */

static void port_close(struct port *p)
{
    if (p->dead) return;
    p->dead = true;
    watch_close(&p->watch);
    for (struct forward *f = forwards; f; f = f->next) {
        if (f->port != p) continue;
        f->port = NULL;
        if (!f->conn) abort_it(f, ECONNABORTED);
    }
}

static int loopback_listen(uint64_t number)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!bind(fd, (struct sockaddr *)&address, sizeof address) && !listen(fd, SOMAXCONN)) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* A port that another relay left, or whose end was not seen yet: relays replace one another. */
static struct port *port_inherited(const struct conn *c, uint64_t number)
{
    for (struct port *p = ports; p && c->relay; p = p->next)
        if (p->number == number && !p->dead && (!p->conn || p->conn->relay)) return p;
    return NULL;
}

void forward_listen(struct conn *c, uint32_t stream, struct span payload)
{
    uint64_t number = tlv_u64(payload, K_PORT, 0);
    uint8_t answer[8];
    struct port *p = port_inherited(c, number);
    if (!p) {
        int fd = number && number < 65536 ? loopback_listen(number) : (errno = EINVAL, -1);
        if (fd < 0 || !(p = calloc(1, sizeof *p))) {
            put32(answer, W_CONNECT);
            put32(answer + 4, (uint32_t)errno);
            if (fd >= 0) close(fd);
            return conn_send(c, F_LAUNCH_FAILED, stream, answer, sizeof answer);
        }
        p->watch = (struct watch){.fd = fd, .kind = WATCH_PORT, .owner = p};
        p->number = number;
        p->next = ports;
        ports = p;
    }
    if (p->conn) tell_end(p->conn, p->stream, EADDRINUSE);
    p->conn = c;
    p->stream = stream;
    p->window = tlv_u64(payload, K_WINDOW, 0);
    put64(answer, number);
    conn_send(c, F_DONE, stream, answer, sizeof answer);
    for (struct forward *f = forwards; f; f = f->next) {
        if (f->port != p || f->dead) continue;
        f->conn = c;
        announce(f);
    }
    ports_refresh();
}

/* -------- the loop's side -------- */

void forward_event(struct watch *w, uint32_t events)
{
    if (w->kind == WATCH_PORT) {
        struct port *p = w->owner;
        for (int i = 0; i < ACCEPT_AT_ONCE && p->conn && forward_count < MAX_FORWARDS; i++) {
            int fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd < 0) break;
            accept_one(p, fd);
        }
        return ports_refresh();
    }
    struct forward *f = w->owner;
    if (events & (EPOLLOUT | EPOLLERR)) push(f);
    if (f->leaving && !f->dead) pull_away(f);
    for (int i = 0; i < READS_AT_ONCE && !f->leaving && !f->dead && pull(f); i++) continue;
    refresh(f);
}

/* A caller's frame for an accepted connection; false when it made no sense. One for a connection that has ended is late, not wrong. */
bool forward_frame(struct conn *c, uint8_t type, uint32_t stream, struct span payload)
{
    struct forward *f = find(c, stream);
    if (!f) return true;
    f->port = NULL;
    switch (type) {
    case F_STDIN: {
        struct buf *b = &f->pending;
        uint8_t *p;
        if (f->in_eof || !payload.len) return true;
        if (b->len - b->off + payload.len > IN_WINDOW || !(p = buf_room(b, payload.len))) return false;
        memcpy(p, payload.data, payload.len);
        b->len += payload.len;
        push(f);
        break;
    }
    case F_STDIN_EOF: f->in_eof = true; break;
    case F_CREDIT: {
        uint64_t more = tlv_u64(payload, K_WINDOW, 0);
        f->credit = f->credit + more < more ? NEVER : f->credit + more;
        break;
    }
    default:
        f->leaving = f->in_eof;
        if (!f->in_eof) abort_it(f, ECONNABORTED);
    }
    refresh(f);
    return true;
}

/* Ends listening; true when the stream was a port's. */
bool forward_unlisten(struct conn *c, uint32_t stream)
{
    for (struct port *p = ports; p; p = p->next) {
        if (p->conn != c || p->stream != stream || p->dead) continue;
        tell_end(c, stream, 0);
        port_close(p);
        return true;
    }
    return false;
}

/* The caller takes output again. */
void forward_drained(struct conn *c)
{
    for (struct forward *f = forwards; f; f = f->next)
        if (f->conn == c) refresh(f);
}

void forward_detach(struct conn *c)
{
    for (struct forward *f = forwards; f; f = f->next) {
        if (f->conn != c || f->dead) continue;
        f->conn = NULL;
        if (f->port && c->relay && !f->credit) watch_set(&f->watch, 0);
        else abort_it(f, ECONNABORTED);
    }
    for (struct port *p = ports; p; p = p->next) {
        if (p->conn != c) continue;
        p->conn = NULL;
        p->until_ms = g.now_ms + PARKED_MS;
        if (!c->relay) port_close(p);
    }
    ports_refresh();
}

uint64_t forward_next_ms(void)
{
    uint64_t next = NEVER;
    for (struct port *p = ports; p; p = p->next)
        if (!p->conn && !p->dead && p->until_ms < next) next = p->until_ms;
    return next;
}

/* Frees what is over. Nothing that an event of this turn may still name is freed before the turn's end. */
void forward_collect(void)
{
    for (struct port **at = &ports; *at;) {
        struct port *p = *at;
        if (!p->conn && g.now_ms >= p->until_ms) port_close(p);
        if (!p->dead) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        free(p);
    }
    for (struct forward **at = &forwards; *at;) {
        struct forward *f = *at;
        if (!f->dead) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        buf_free(&f->pending);
        free(f);
    }
}
