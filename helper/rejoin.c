/* Callers whose connection broke and who come back for a command: its output is kept until they say to have it, its ending too.
 *
 * A request may have been lost with its connection, or may still be on its way. So a number is remembered for a while after its command is
 * over: one that is not known was never asked for, and may be asked for again; one that is known is never begun a second time. What was
 * sent over an earlier connection and arrives after its sender came by a later one is not heard. */
#include "helper.h"

#define HOLD_MS 60000            /* how long one is waited for */
#define LOG_MOST (16u << 20)     /* bytes of output that are kept, of all commands */
#define OVER_MAX 1024            /* numbers that are known and not a running command's */
#define LATE_MS 5000             /* that the question itself may have been under way */

/* A command that is over, with what its caller may not have heard; or without an ending, one that has not arrived yet. `serial` is then the
 * earliest connection by which it may still come. */
struct over { uint64_t number, told_ms, serial, sent; uint32_t len; uint8_t type, ending[ENDING_BYTES]; struct log log; };

static uint64_t logged_all, tidy_ms;
static struct over overs[OVER_MAX];
static unsigned over_count;

/* -------- output that a caller may not have got -------- */

void log_forget(struct log *log)
{
    logged_all -= log->bytes;
    log->bytes = 0;
    buf_free(&log->frames);
}

/* Whether so much more can be kept. What commands left that are over goes first, the oldest before the others. */
bool log_takes(size_t len)
{
    for (unsigned i = 0; i < OVER_MAX && logged_all + len > LOG_MOST; i++) log_forget(&overs[(over_count + i) % OVER_MAX].log);
    return logged_all + len <= LOG_MOST;
}

/* Keeps a piece of output. Where there is no room for it, everything before it is given up: what is kept has no gap. */
void log_add(struct log *log, uint8_t type, const uint8_t *data, size_t len)
{
    uint8_t *to = log_takes(len) ? frame_put(&log->frames, type, 0, len) : NULL;
    if (!to) return log_forget(log);
    if (to != data) memcpy(to, data, len);
    log->bytes += len;
    logged_all += len;
}

/* Keeps the last bytes alone, so many: the caller has those before. */
static void log_keep(struct log *log, uint64_t most)
{
    struct buf *frames = &log->frames;
    while (log->bytes > most) {
        uint8_t *frame = frames->data + frames->off, type = frame[4];
        uint64_t length = get32(frame) - 5, beyond = log->bytes - most, cut = beyond < length ? beyond : length;
        log->bytes -= cut;
        logged_all -= cut;
        if (cut == length) {
            buf_take(frames, 9 + (size_t)length);
            continue;
        }
        frames->off += (size_t)cut;
        put32(frame + cut, (uint32_t)(length - cut + 5));
        frame[cut + 4] = type;
    }
    buf_shrink(frames, 2 * CHUNK);
}

static void log_tell(const struct log *log, struct conn *c, uint32_t stream)
{
    for (size_t at = log->frames.off; at < log->frames.len;) {
        const uint8_t *frame = log->frames.data + at;
        size_t length = get32(frame) - 5;
        conn_send(c, frame[4], stream, frame + 9, length);
        at += 9 + length;
    }
}

void rejoin_credit(struct cmd *cmd, uint64_t more)
{
    cmd->credit = cmd->credit + more < more ? NEVER : cmd->credit + more;
    log_keep(&cmd->log, cmd->window > cmd->credit ? cmd->window - cmd->credit : 0);
    exec_refresh(cmd);
}

/* -------- commands that are known -------- */

static struct cmd *running(uint64_t number)
{
    struct cmd *cmd = g.cmds;
    while (cmd && (cmd->rejoin != number || cmd->dead || cmd->told)) cmd = cmd->next;
    return cmd;
}

static struct over *over(uint64_t number)
{
    for (unsigned i = 0; i < OVER_MAX && i < over_count; i++)
        if (overs[i].number == number) return &overs[i];
    return NULL;
}

static struct over *over_add(uint64_t number)
{
    struct over *o = &overs[over_count++ % OVER_MAX];
    log_forget(&o->log);
    *o = (struct over){.number = number, .told_ms = g.now_ms};
    return o;
}

/* Whether a command that was sent so long ago would still be known if it had arrived. */
static bool remembers(uint64_t age_ms)
{
    if (over_count <= OVER_MAX) return g.now_ms - g.begun_ms >= age_ms;
    return g.now_ms - overs[over_count % OVER_MAX].told_ms >= age_ms + LATE_MS;
}

static uint64_t sent_of(const struct cmd *cmd)
{
    uint64_t sent = 0;
    for (int i = 0; i < OUTS; i++) sent += cmd->out[i].sent;
    return sent;
}

bool rejoin_may_begin(const struct conn *c, uint64_t number)
{
    const struct over *o = over(number);
    return !running(number) && (!o || (!o->len && c->serial >= o->serial));
}

/* The command is over: its ending, and what of its output its caller has not said to have, wait for him. */
void rejoin_remember(struct cmd *cmd, uint8_t type, const uint8_t *ending, size_t len)
{
    struct over *o = over(cmd->rejoin);
    if (!o) o = over_add(cmd->rejoin);
    o->told_ms = g.now_ms;
    o->sent = sent_of(cmd);
    o->type = type;
    o->len = (uint32_t)len;
    memcpy(o->ending, ending, len);
    if (cmd->log.bytes) o->log = cmd->log, cmd->log = (struct log){0};
}

/* Its caller has everything. */
void rejoin_heard(uint64_t number)
{
    struct over *o = over(number);
    if (o) log_forget(&o->log);
}

/* Nobody comes back after so long. */
void rejoin_timers(void)
{
    if (g.now_ms < tidy_ms) return;
    tidy_ms = g.now_ms + HOLD_MS / 4;
    for (unsigned i = 0; i < OVER_MAX; i++)
        if (g.now_ms - overs[i].told_ms >= HOLD_MS) log_forget(&overs[i].log);
}

/* -------- callers that come back -------- */

/* Says how much of the input has arrived, and how much more there is room for; the rest of the output follows. */
static void answer(struct conn *c, uint32_t stream, uint64_t received, uint64_t room)
{
    uint8_t p[16];
    put64(p, received);
    put64(p + 8, room);
    conn_send(c, F_DONE, stream, p, sizeof p);
}

static void tell_again(struct conn *c, uint32_t stream, struct over *o, uint64_t missing)
{
    if (missing > o->log.bytes) return exec_failed(c, stream, W_UNKNOWN, ESTALE);
    log_keep(&o->log, missing);
    answer(c, stream, NEVER, 0);
    log_tell(&o->log, c, stream);
    conn_send(c, o->type, stream, o->ending, o->len);
}

static void go_on(struct conn *c, uint32_t stream, struct cmd *cmd, uint64_t missing, uint64_t window)
{
    if (missing > cmd->log.bytes || c->serial < cmd->serial) return exec_failed(c, stream, W_UNKNOWN, ESTALE);
    log_keep(&cmd->log, missing);
    cmd->conn = c;
    cmd->serial = c->serial;
    cmd->stream = stream;
    cmd->held_ms = cmd->in_credit = 0;
    cmd->credit = window > missing ? window - missing : 0;
    answer(c, stream, cmd->in_total, IN_WINDOW - (cmd->pending.len - cmd->pending.off));
    exec_started(cmd);
    log_tell(&cmd->log, c, stream);
    exec_settle(cmd);
}

/* A caller goes on with a command of his broken connection: he says how much of the output he has, and gets the rest. */
void rejoin_command(struct conn *c, uint32_t stream, struct span payload)
{
    uint64_t number = tlv_u64(payload, K_REJOIN, 0), received = tlv_u64(payload, K_RECEIVED, 0);
    struct cmd *cmd = running(number);
    struct over *o = over(number);
    if (!number || exec_find(c, stream)) return exec_failed(c, stream, W_UNKNOWN, ESTALE);
    if (cmd) return go_on(c, stream, cmd, sent_of(cmd) - received, tlv_u64(payload, K_WINDOW, 0));
    if (o && o->len) return tell_again(c, stream, o, o->sent - received);
    if (!o) {
        uint64_t earliest = remembers(tlv_u64(payload, K_AGE_MS, NEVER)) ? c->serial : NEVER;
        o = over_add(number);
        o->serial = earliest;
    }
    bool may_come = c->serial >= o->serial;
    if (may_come) o->serial = c->serial;
    exec_failed(c, stream, W_UNKNOWN, may_come ? ENOENT : ESTALE);
}

/* Its caller is gone, and may come back. */
void rejoin_await(struct cmd *cmd)
{
    if (cmd->rejoin) cmd->held_ms = g.now_ms + HOLD_MS;
}

void rejoin_give_up(struct cmd *cmd)
{
    cmd->held_ms = 0;
    exec_settle(cmd);
}

/* A later owner has the place: nobody comes back for what the earlier one ran. */
void rejoin_nobody(void)
{
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next)
        if (cmd->held_ms && !cmd->dead) rejoin_give_up(cmd);
    for (unsigned i = 0; i < OVER_MAX; i++) log_forget(&overs[i].log);
}
