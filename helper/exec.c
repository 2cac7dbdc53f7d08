/* Commands as the loop sees them once they run: pipes, credits, caps, deadlines and endings. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "helper.h"

#define WORKER_GRACE_MS 500      /* a file worker removes its half-written file and goes */
#define SUPERVISOR_WAKE_MS 300   /* a supervisor that hostile code stopped is woken, */
#define SUPERVISOR_END_MS 700    /* then ended: its orphans come to us */
#define TELL_ANYWAY_MS 1000      /* a process in an uninterruptible wait must not keep the answer back */
#define STOPS_MAX 100            /* so often a supervisor is woken before its command counts as an attack */
#define AGAIN_MS 200             /* before a command that was killed is started again */
#define STATUSES_MAX 3           /* a supervisor tells that its command runs or failed, and how it ended */
#define DYING_MS 100             /* thousands that were killed take their time */

static uint8_t scratch[CHUNK];

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static bool out_full(const struct conn *c) { return c->out.len - c->out.off >= OUT_HIGH; }
static bool discards(const struct cmd *cmd, const struct out *o)
{
    return cmd->told || (!cmd->conn && !cmd->held_ms) || o->sent >= o->limit;
}

struct cmd *exec_find(struct conn *c, uint32_t stream)
{
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next)
        if (cmd->conn == c && cmd->stream == stream && !cmd->told) return cmd;
    return NULL;
}

void exec_failed(struct conn *c, uint32_t stream, int what, int error)
{
    uint8_t p[8];
    put32(p, (uint32_t)what);
    put32(p + 4, (uint32_t)error);
    conn_send(c, F_LAUNCH_FAILED, stream, p, sizeof p);
}

/* -------- ending -------- */

static size_t put_failure(const struct cmd *cmd, uint8_t *p)
{
    put32(p, (uint32_t)cmd->ending.a);
    put32(p + 4, (uint32_t)cmd->ending.b);
    return 8;
}

static size_t put_exit(const struct cmd *cmd, uint8_t *p)
{
    int how = cmd->ending.a;
    bool signalled = WIFSIGNALED(how);
    p[0] = signalled;
    p[1] = cmd->timed_out;
    p[2] = (uint8_t)cmd->reached;
    put32(p + 4, (uint32_t)(signalled ? WTERMSIG(how) : WEXITSTATUS(how)));
    for (int i = 0; i < 2; i++) {
        put64(p + 8 + 16 * i, cmd->out[i].total);
        put64(p + 16 + 16 * i, cmd->out[i].sent);
    }
    put64(p + 40, clock_us() - cmd->started_us);
    put64(p + 48, cmd->ending.user_us + cmd->ending.system_us);
    put64(p + 56, cmd->ending.rss_kb);
    return ENDING_BYTES;
}

static void tell_ending(struct cmd *cmd)
{
    uint8_t p[ENDING_BYTES] = {0}, type = cmd->failed ? F_LAUNCH_FAILED : F_EXIT;
    size_t len = cmd->failed ? put_failure(cmd, p) : put_exit(cmd, p);
    if (cmd->conn) conn_send(cmd->conn, type, cmd->stream, p, len);
    if (cmd->rejoin) rejoin_remember(cmd, type, p, len);
}

static bool drained(const struct cmd *cmd)
{
    for (int i = 0; i < OUTS; i++)
        if (cmd->out[i].watch.fd >= 0 && cmd->out[i].left) return false;
    return true;
}

/* Whether the image's command is started again: where it was killed, and by nobody who may end it. What it left goes first, so that it meets
 * no port, lock or memory that is still held. */
static bool starts_again(struct cmd *cmd)
{
    int how = cmd->ending.a;
    if (!(g.config.flags & C_RESTART) || g.hold || g.stopping || cmd->failed) return false;
    if (!WIFSIGNALED(how) || container_ends_on(WTERMSIG(how))) return false;
    cmd->again = cmd->killing = true;
    cmd->kill_ms = g.now_ms;
    return true;
}

/* Tells the ending once it is due, and lets the command go once its tree is gone too. */
void exec_settle(struct cmd *cmd)
{
    bool overdue = cmd->killing && cmd->kill_began_ms && g.now_ms - cmd->kill_began_ms > TELL_ANYWAY_MS;
    if (!cmd->told && !cmd->held_ms && cmd->exited && drained(cmd) && (!cmd->killing || cmd->gone || overdue)) {
        tell_ending(cmd);
        cmd->told = true;
        cmd->conn = NULL;
        if (!cmd->killing) cmd->deadline_ms = NEVER;
        watch_close(&cmd->in);
        if (!cmd->worker) ledger_remember(cmd);
        if (cmd->entry && !starts_again(cmd)) container_entry_ended(&cmd->ending);
    }
    if (cmd->told && cmd->gone && !cmd->dead) {
        cmd->dead = true;
        if (cmd->again) g.again_ms = g.now_ms + AGAIN_MS;
        watch_close(&cmd->in);
        for (int i = 0; i < OUTS; i++) watch_close(&cmd->out[i].watch);
        watch_close(&cmd->status);
        g.cmd_count--;
        return;
    }
    exec_refresh(cmd);
}

/* What stands in the pipes when the command ends is its output; what a background child writes later is not. */
static void ended(struct cmd *cmd)
{
    cmd->exited = true;
    cmd->reached = limits_reached(cmd);
    hush_end(cmd);
    if (!cmd->killing) cmd->deadline_ms = NEVER;
    for (int i = 0; i < OUTS; i++) {
        int waiting = 0;
        if (cmd->out[i].watch.fd >= 0 && !ioctl(cmd->out[i].watch.fd, FIONREAD, &waiting)) cmd->out[i].left = (uint64_t)waiting;
    }
}

/* In an orderly end the supervisor has told the ending before it goes. */
static void supervisor_gone(struct cmd *cmd)
{
    if (cmd->gone || exec_begun_anew(cmd)) return;
    cmd->gone = true;
    watch_close(&cmd->status);
    if (!cmd->exited || cmd->killing) {
        if (!cmd->exited) cmd->ending.a = SIGKILL;
        ended(cmd);
        if (!cmd->worker) g.stray_ms = g.now_ms;
    }
}

/* Tells that it has started, to who wants to know. */
void exec_started(struct cmd *cmd)
{
    uint8_t pid[4];
    put32(pid, (uint32_t)cmd->live->main_pid);
    if (cmd->want_started && cmd->conn && cmd->live->main_pid) conn_send(cmd->conn, F_STARTED, cmd->stream, pid, sizeof pid);
}

static void read_status(struct cmd *cmd)
{
    struct status told[STATUSES_MAX];
    ssize_t n = cmd->status.fd < 0 ? -1 : read(cmd->status.fd, told, sizeof told);
    for (size_t i = 0; n > 0 && i < (size_t)n / sizeof *told; i++) {
        const struct status *s = &told[i];
        if (s->kind == S_STARTED && !cmd->failed) {
            exec_started(cmd);
        } else if (s->kind == S_FAILED) {
            cmd->failed = cmd->exited = true;
            cmd->ending = *s;
        } else if (s->kind == S_EXITED && !cmd->failed) {
            cmd->ending = *s;
            ended(cmd);
        }
    }
    if (n == 0) supervisor_gone(cmd);
}

void exec_reaped(int pid)
{
    starter_reaped(pid);
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next) {
        if (cmd->live->supervisor != pid || cmd->dead) continue;
        read_status(cmd);
        supervisor_gone(cmd);
        cmd->live->supervisor = 0;
        exec_settle(cmd);
        return;
    }
}

/* A child of ours that hostile code stopped goes on at once: it is what tells how a command ends. Who keeps on at it is ended. */
void exec_stopped(int pid)
{
    kill(pid, SIGCONT);
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next)
        if (cmd->live->supervisor == pid && !cmd->dead && !cmd->killing && ++cmd->stops > STOPS_MAX) exec_kill(cmd);
}

/* -------- streams -------- */

/* One read of a pipe, straight into the caller's buffer or away. Returns false when there is nothing more to do now. */
static bool pump_once(struct cmd *cmd, struct out *o, uint8_t type)
{
    uint64_t want = cmd->exited && !cmd->told ? least(CHUNK, o->left) : CHUNK;
    bool away = discards(cmd, o);
    struct buf *into = cmd->conn ? &cmd->conn->out : &cmd->log.frames;
    uint8_t *to = scratch;
    if (!away) {
        bool full = cmd->conn ? out_full(cmd->conn) : !log_takes(CHUNK);
        want = full ? 0 : least(least(want, cmd->credit), o->limit - o->sent);
        to = want ? buf_room(into, 9 + want) : NULL;
        if (to) to += 9;
    }
    if (!want || !to) return false;
    ssize_t n = read(o->watch.fd, to, want);
    if (n < 0 && errno == EINTR) return true;
    if (n <= 0) {
        if (n < 0 && errno == EAGAIN && !cmd->exited) return false;
        o->left = 0;
        if (n == 0) watch_close(&o->watch);
        return false;
    }
    o->total += (uint64_t)n;
    if (cmd->exited) o->left -= least(o->left, (uint64_t)n);
    if (!away) {
        o->sent += (uint64_t)n;
        cmd->credit -= (uint64_t)n;
        if (cmd->conn) frame_put(into, type, cmd->stream, (size_t)n);
        if (cmd->rejoin) log_add(&cmd->log, type, to, (size_t)n);
    }
    return true;
}

static void pump_out(struct cmd *cmd, int which)
{
    static const uint8_t FRAMES[OUTS] = {F_STDOUT, F_STDERR, F_RESULT};
    struct out *o = &cmd->out[which];
    for (int i = 0; i < 4 && o->watch.fd >= 0; i++)
        if (!pump_once(cmd, o, FRAMES[which])) break;
}

static void pump_in(struct cmd *cmd)
{
    struct buf *b = &cmd->pending;
    size_t passed = 0;
    while (cmd->in.fd >= 0 && b->len > b->off) {
        ssize_t n = write(cmd->in.fd, b->data + b->off, b->len - b->off);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) {
            watch_close(&cmd->in); /* the command closed its input: what is sent now is for nobody */
            buf_free(b);
            break;
        }
        passed += (size_t)n;
        buf_take(b, (size_t)n);
    }
    cmd->in_credit += passed;
    if (cmd->in_credit >= cmd->in_window / 4 && cmd->conn) {
        uint8_t p[8];
        put64(p, cmd->in_credit);
        conn_send(cmd->conn, F_CREDIT, cmd->stream, p, sizeof p);
        cmd->in_credit = 0;
    }
    if (cmd->in.fd >= 0 && b->len == b->off && cmd->in_eof) watch_close(&cmd->in);
    if (cmd->in.fd >= 0) watch_set(&cmd->in, b->len > b->off ? EPOLLOUT : 0);
}

bool exec_stdin(struct cmd *cmd, struct span data)
{
    struct buf *b = &cmd->pending;
    cmd->in_total += data.len;
    if (!data.len || cmd->in.fd < 0 || cmd->in_eof) return true;
    if (b->len - b->off + data.len > cmd->in_window) return false;
    if (cmd->files && cmd->in_window < FILES_WINDOW && cmd->in_total > IN_WINDOW / 2) {
        cmd->in_credit += FILES_WINDOW - cmd->in_window;
        cmd->in_window = FILES_WINDOW;
    }
    uint8_t *p = buf_room(b, data.len);
    if (!p) return false;
    memcpy(p, data.data, data.len);
    b->len += data.len;
    pump_in(cmd);
    return true;
}

void exec_stdin_eof(struct cmd *cmd)
{
    cmd->in_eof = true;
    pump_in(cmd);
}

/* Which pipes are worth listening to now. One that can't be read is not watched at all: a hang-up would wake the loop for ever. */
void exec_refresh(struct cmd *cmd)
{
    for (int i = 0; i < OUTS; i++) {
        struct out *o = &cmd->out[i];
        if (o->watch.fd < 0) continue;
        bool done = cmd->exited && !cmd->told && !o->left;
        bool ready = !done && (discards(cmd, o) || (cmd->credit && (cmd->conn ? !out_full(cmd->conn) : log_takes(CHUNK))));
        watch_set(&o->watch, ready ? EPOLLIN : 0);
    }
}

void exec_event(struct watch *w)
{
    struct cmd *cmd = w->owner;
    if (cmd->dead) return;
    if (w->kind == WATCH_STATUS) read_status(cmd);
    else if (w->kind == WATCH_IN) pump_in(cmd);
    else pump_out(cmd, w->kind - WATCH_OUT);
    if (w->kind == WATCH_RESULT) hush_end(cmd);
    exec_settle(cmd);
}

/* -------- time -------- */

void exec_kill(struct cmd *cmd)
{
    if (cmd->worker && !cmd->killing) {
        watch_close(&cmd->in);
        if (cmd->live->supervisor) kill(cmd->live->supervisor, SIGTERM);
        cmd->kill_ms = g.now_ms + WORKER_GRACE_MS;
    } else if (!cmd->worker) {
        cmd->kill_ms = g.now_ms;
    }
    cmd->killing = true;
    cmd->deadline_ms = NEVER;
    g.hold |= cmd->entry; /* whoever ends the image's command through us wants the place to stay */
}

static void deadline_passed(struct cmd *cmd)
{
    cmd->timed_out = true;
    if (cmd->worker) return exec_kill(cmd);
    cmd->killing = true;
    cmd->deadline_ms = NEVER;
    cmd->kill_ms = cmd->frozen ? g.now_ms : g.now_ms + cmd->grace_ms; /* what was frozen must not wake again */
    if (!cmd->frozen && cmd->live->supervisor) tree_terminate(cmd->live->supervisor, cmd->grace_ms);
}

/* The tree is ended and looked at again until it is gone; what only has to die is left alone meanwhile, for looking takes time from it. */
static void sweep(struct cmd *cmd)
{
    bool only_dying = false;
    if (!cmd->kill_began_ms) cmd->kill_began_ms = g.now_ms;
    uint64_t since = g.now_ms - cmd->kill_began_ms;
    cmd->live->called_off = true;
    if (cmd->live->supervisor) {
        if (!cmd->worker) only_dying = tree_kill(cmd->live->supervisor) && tree_crowded(cmd->live->supervisor);
        if (since > SUPERVISOR_WAKE_MS) kill(cmd->live->supervisor, SIGCONT);
        if (cmd->worker || since > SUPERVISOR_END_MS) kill(cmd->live->supervisor, SIGKILL);
    }
    if (since > TELL_ANYWAY_MS && !cmd->exited) {
        cmd->ending.a = SIGKILL;
        ended(cmd);
    }
    uint64_t pause = only_dying ? DYING_MS : since < 20 ? 1 : since < TELL_ANYWAY_MS ? 5 : 250;
    cmd->sweep_ms = clock_ms(CLOCK_MONOTONIC) + pause;
    exec_settle(cmd);
}

void exec_timers(void)
{
    rejoin_timers();
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next) {
        if (cmd->held_ms && !cmd->dead && g.now_ms >= cmd->held_ms) rejoin_give_up(cmd);
        if (cmd->dead || cmd->gone) continue;
        if (cmd->hush_ms && g.now_ms >= cmd->hush_ms) hush_end(cmd);
        if (g.now_ms >= cmd->deadline_ms) deadline_passed(cmd);
        if (cmd->killing && g.now_ms >= cmd->kill_ms && g.now_ms >= cmd->sweep_ms) sweep(cmd);
    }
}

uint64_t exec_next_ms(void)
{
    uint64_t next = NEVER;
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next) {
        if (cmd->held_ms && !cmd->dead) next = least(next, cmd->held_ms);
        if (cmd->dead || cmd->gone) continue;
        next = least(next, cmd->deadline_ms);
        if (cmd->hush_ms) next = least(next, cmd->hush_ms);
        if (cmd->killing) next = least(next, cmd->kill_ms > cmd->sweep_ms ? cmd->kill_ms : cmd->sweep_ms);
    }
    return next;
}

/* The caller is gone: commands run on, their output waits for a while for one that may come back, file work stops. */
void exec_detach(struct conn *c)
{
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next) {
        if (cmd->conn != c || cmd->dead) continue;
        cmd->conn = NULL;
        if (!c->closing) rejoin_await(cmd); /* who was sent away does not come back */
        if (cmd->worker) exec_kill(cmd);
        exec_settle(cmd);
    }
}

void exec_collect(void)
{
    for (struct cmd **at = &g.cmds; *at;) {
        struct cmd *cmd = *at;
        if (!cmd->dead) {
            at = &cmd->next;
            continue;
        }
        *at = cmd->next;
        buf_free(&cmd->pending);
        log_forget(&cmd->log);
        cmd->live->used = false;
        buf_free(&cmd->handed);
        free(cmd);
    }
}
