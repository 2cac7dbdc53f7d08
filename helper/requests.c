/* What a caller may ask for. A malformed request ends that caller's connection and nothing else. */
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "helper.h"

#define WAITERS_MAX 256

/* A caller that waits until the trees of an attempt (or, with `stop`, the whole place) are gone. */
struct waiter { struct conn *conn; uint32_t stream; uint64_t count; bool used, stop; char attempt[ATTEMPT_MAX + 1]; };
static struct waiter waiters[WAITERS_MAX];

static void done(struct conn *c, uint32_t stream, uint64_t value)
{
    uint8_t p[8];
    put64(p, value);
    conn_send(c, F_DONE, stream, p, sizeof p);
}

static void refuse(struct conn *c, uint32_t why)
{
    uint8_t p[12];
    put32(p, why);
    put64(p + 4, why == REFUSED_TOKEN ? 0 : g.highest_epoch);
    conn_send(c, F_REFUSED, 0, p, sizeof p);
    c->closing = true;
}

static void welcome(struct conn *c, uint32_t stream, uint64_t epoch)
{
    uint8_t p[12];
    c->greeted = true;
    c->epoch = epoch;
    put32(p, PROTOCOL_VERSION);
    put64(p + 4, g.highest_epoch);
    conn_send(c, F_WELCOME, stream, p, sizeof p);
}

static void hello(struct conn *c, struct span payload)
{
    struct span token = {0};
    uint64_t epoch = tlv_u64(payload, K_EPOCH, 0);
    tlv_find(payload, K_TOKEN, &token);
    if (g.awaiting) return refuse(c, REFUSED_AWAITING);
    c->relay = g.config.relay_token.len && same_bytes(token, g.config.relay_token);
    if (!c->relay && !same_bytes(token, g.config.token)) return refuse(c, REFUSED_TOKEN);
    if (tlv_u64(payload, K_VERSION, 0) != PROTOCOL_VERSION) return refuse(c, REFUSED_VERSION);
    if (c->relay) return welcome(c, 0, NEVER); /* no owner: none is superseded by it, and it by none */
    if (epoch < g.highest_epoch) return refuse(c, REFUSED_SUPERSEDED);
    if (epoch > g.highest_epoch) rejoin_nobody();
    g.highest_epoch = epoch;
    for (struct conn *other = g.conns; other; other = other->next)
        if (other != c && other->greeted && other->epoch < epoch) refuse(other, REFUSED_SUPERSEDED);
    welcome(c, 0, epoch);
}

/* The first word to a container's helper. One that was told already is greeted like any other. */
static bool configure(struct conn *c, uint32_t stream, struct span payload)
{
    if (!g.awaiting) return refuse(c, REFUSED_CONFIGURED), true;
    if (tlv_u64(payload, K_VERSION, 0) != PROTOCOL_VERSION) return refuse(c, REFUSED_VERSION), true;
    if (!c->trusted) return refuse(c, REFUSED_TOKEN), true;
    if (!container_configure(c, stream, payload)) return false;
    welcome(c, stream, g.highest_epoch);
    return true;
}

static bool matches(const struct cmd *cmd, const struct span *attempt)
{
    if (cmd->dead || cmd->gone || cmd->worker) return false;
    return !attempt || (strlen(cmd->attempt) == attempt->len && !memcmp(cmd->attempt, attempt->data, attempt->len));
}

static bool wait_for(struct conn *c, uint32_t stream, const struct span *attempt, uint64_t count)
{
    for (int i = 0; i < WAITERS_MAX; i++) {
        struct waiter *w = &waiters[i];
        if (w->used) continue;
        *w = (struct waiter){.conn = c, .stream = stream, .count = count, .used = true, .stop = !attempt};
        if (attempt) memcpy(w->attempt, attempt->data, attempt->len);
        return true;
    }
    return false;
}

static bool kill_attempt(struct conn *c, uint32_t stream, struct span payload)
{
    struct span attempt;
    uint64_t count = 0;
    if (!tlv_find(payload, K_ATTEMPT, &attempt) || attempt.len > ATTEMPT_MAX || !attempt.len) return false;
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next) {
        if (!matches(cmd, &attempt)) continue;
        exec_kill(cmd);
        count++;
    }
    return wait_for(c, stream, &attempt, count);
}

/* Whether the command belongs to one of the attempts that the request names; where it names none, all are meant. */
static bool meant(const struct cmd *cmd, struct span payload)
{
    struct span attempt;
    uint16_t key;
    bool any = false;
    while (tlv_next(&payload, &key, &attempt)) {
        if (key != K_ATTEMPT) continue;
        if (matches(cmd, &attempt)) return true;
        any = true;
    }
    return !any && matches(cmd, NULL);
}

/* All in one go: a tree that is not stopped yet could wake one that is. */
static void freeze(struct conn *c, uint32_t stream, struct span payload, bool stop)
{
    static int roots[MAX_COMMANDS];
    int count = 0;
    uint64_t processes = 0;
    for (struct cmd *cmd = g.cmds; cmd && count < MAX_COMMANDS; cmd = cmd->next) {
        if (!cmd->live->supervisor || cmd->killing || !meant(cmd, payload)) continue;
        cmd->frozen = stop;
        roots[count++] = cmd->live->supervisor;
    }
    if (stop && count) processes = (uint64_t)trees_freeze(roots, count);
    for (int i = 0; i < count && !stop; i++) processes += (uint64_t)tree_signal(roots[i], SIGCONT, true);
    done(c, stream, processes);
}

static void signal_stream(struct conn *c, uint32_t stream, struct span payload)
{
    struct cmd *cmd = exec_find(c, stream);
    int sig = (int)tlv_u64(payload, K_SIGNAL, SIGKILL);
    if (!cmd) return;
    if (sig == SIGKILL || cmd->worker) exec_kill(cmd);
    else if (cmd->live->supervisor && sig > 0 && sig < 65) tree_signal(cmd->live->supervisor, sig, false);
}

static void set_ttl(struct conn *c, uint32_t stream, struct span payload)
{
    uint64_t ttl = tlv_u64(payload, K_TTL_MS, 0), now = clock_ms(CLOCK_BOOTTIME);
    g.ttl_at = ttl && ttl < NEVER - now ? now + ttl : NEVER;
    done(c, stream, ttl);
}

static bool stop_place(struct conn *c, uint32_t stream, struct span payload)
{
    uint64_t grace = tlv_u64(payload, K_GRACE_MS, 0);
    if (!wait_for(c, stream, NULL, 0)) return false;
    if (grace)
        for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next)
            if (cmd->live->supervisor) tree_signal(cmd->live->supervisor, SIGTERM, false);
    g.stopping = true;
    g.stop_at = grace < 1000000 ? g.now_ms + grace : g.now_ms;
    return true;
}

static bool start(struct conn *c, uint8_t type, uint32_t stream, struct span payload)
{
    if (exec_find(c, stream)) return false;
    if (type == F_EXEC && ready_refuses()) return exec_failed(c, stream, W_NETWORK, 0), true;
    exec_start(c, stream, payload, type);
    return true;
}

/* A place that is given its limits and its network after its first process is told only then to start its own command, and only once. */
static void enter(struct conn *c, uint32_t stream)
{
    struct span entry;
    if (ready_refuses()) return exec_failed(c, stream, W_NETWORK, 0), done(c, stream, 1);
    bool waits = g.config.flags & C_ENTRY_LATER && tlv_find(g.config.whole, K_ENTRY_ARG, &entry);
    g.config.flags &= ~(uint64_t)C_ENTRY_LATER;
    if (waits) exec_entry(c, stream);
    done(c, stream, waits);
}

/* What a relay may ask for: connections to and from the place's loopback. No command, no file, nothing of the place's life. */
static bool relays(uint8_t type)
{
    return type == F_LISTEN_TCP || type == F_OPEN_TCP || type == F_STDIN || type == F_STDIN_EOF || type == F_CREDIT || type == F_KILL
        || type == F_PING;
}

/* Handles one frame; false means that it made no sense and its sender must go. */
bool request(struct conn *c, uint8_t type, uint32_t stream, struct span payload)
{
    struct cmd *cmd;
    bool to_forward = c->greeted && stream >= FORWARD_STREAM;
    if (c->relay && !relays(type)) return false;
    if (type == F_STDIN && to_forward) return forward_frame(c, type, stream, payload);
    if (type == F_STDIN) return !(cmd = exec_find(c, stream)) || exec_stdin(cmd, payload);
    if (!tlv_valid(payload) || c->greeted == (type == F_HELLO || type == F_CONFIGURE)) return false;
    if (to_forward && (type == F_STDIN_EOF || type == F_CREDIT || type == F_KILL)) return forward_frame(c, type, stream, payload);
    switch (type) {
    case F_HELLO: hello(c, payload); return true;
    case F_CONFIGURE: return configure(c, stream, payload);
    case F_EXEC: case F_FILES: case F_OPEN_TCP: return start(c, type, stream, payload);
    case F_LISTEN_TCP: forward_listen(c, stream, payload); return true;
    case F_STDIN_EOF:
        if ((cmd = exec_find(c, stream))) exec_stdin_eof(cmd);
        return true;
    case F_CREDIT:
        if ((cmd = exec_find(c, stream))) rejoin_credit(cmd, tlv_u64(payload, K_WINDOW, 0));
        return true;
    case F_KILL:
        if (!forward_unlisten(c, stream)) signal_stream(c, stream, payload);
        return true;
    case F_KILL_ATTEMPT: return kill_attempt(c, stream, payload);
    case F_FREEZE: case F_THAW: freeze(c, stream, payload, type == F_FREEZE); return true;
    case F_LEDGER: ledger_send(c, stream); return true;
    case F_SET_TTL: set_ttl(c, stream, payload); return true;
    case F_SHUTDOWN: return stop_place(c, stream, payload);
    case F_PING: done(c, stream, 0); return true;
    case F_ENTRY: enter(c, stream); return true;
    case F_REJOIN: rejoin_command(c, stream, payload); return true;
    case F_HEARD: rejoin_heard(tlv_u64(payload, K_REJOIN, 0)); return true;
    case F_NETWORK: done(c, stream, ready_networked()); return true;
    default: return false;
    }
}

/* Answers the waiters whose wait is over. */
void requests_settle(void)
{
    for (int i = 0; i < WAITERS_MAX; i++) {
        struct waiter *w = &waiters[i];
        struct span attempt = {(const uint8_t *)w->attempt, strlen(w->attempt)};
        bool alive = w->used && w->stop;
        for (struct cmd *cmd = g.cmds; w->used && !alive && cmd; cmd = cmd->next) alive = matches(cmd, &attempt) && cmd->killing;
        if (!w->used || alive) continue;
        w->used = false;
        done(w->conn, w->stream, w->count);
    }
}

/* Everything is dead: those who asked for it may know. */
void requests_stopped(void)
{
    for (int i = 0; i < WAITERS_MAX; i++)
        if (waiters[i].used && waiters[i].stop) done(waiters[i].conn, waiters[i].stream, 0);
}

void requests_forget(struct conn *c)
{
    for (int i = 0; i < WAITERS_MAX; i++)
        if (waiters[i].conn == c) waiters[i].used = false;
}
