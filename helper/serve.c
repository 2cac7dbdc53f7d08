/* `serve`: the loop. Never waits for anything but its epoll set, so no command, caller or disk can hold it up. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "helper.h"

#define HELLO_MS 10000            /* a caller that does not greet is let go */
#define IDLE_MS 60000             /* the longest sleep: a TTL counts suspended time too, and epoll does not */
#define STOP_MS 2000
#define CONFIG_MAX (1u << 20)
#define CAP_SYS_PTRACE_BIT 19
#define STRAY_MS 5
#define STREAM_MOST (2 * OUT_HIGH) /* what a buffer that output streams through grows to */
#define RESET_ON_FORK 1           /* SCHED_FLAG_RESET_ON_FORK */
#define TURN_NS 100000            /* the least that the kernel takes */

struct state g = {.listen = -1, .null = -1};
extern char **environ;

uint64_t clock_ms(int clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

uint64_t clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

void watch_set(struct watch *w, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = w};
    if (w->fd < 0 || w->events == events) return;
    epoll_ctl(g.epoll, !events ? EPOLL_CTL_DEL : w->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, w->fd, &e);
    w->events = events;
}

void watch_close(struct watch *w)
{
    if (w->fd < 0) return;
    watch_set(w, 0);
    close(w->fd);
    w->fd = -1;
}

/* -------- callers -------- */

void conn_end(struct conn *c)
{
    if (c->dead) return;
    c->dead = true;
    g.conn_count--;
    watch_close(&c->watch);
    requests_forget(c);
    exec_detach(c);
    forward_detach(c);
}

/* Anything in the place may connect and say nothing. Where that has taken every connection, the one that has said nothing for longest goes. */
static void conn_make_room(void)
{
    struct conn *silent = NULL;
    for (struct conn *c = g.conns; c && g.conn_count >= MAX_CONNECTIONS; c = c->next)
        if (!c->dead && !c->greeted) silent = c; /* the latest come first */
    if (silent) conn_end(silent);
}

static void conn_accept(void)
{
    static uint64_t accepted;
    for (int fd; (fd = accept4(g.listen, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        conn_make_room();
        struct conn *c = g.conn_count < MAX_CONNECTIONS ? calloc(1, sizeof *c) : NULL;
        if (!c) {
            close(fd);
            continue;
        }
        c->watch = (struct watch){.fd = fd, .kind = WATCH_CONN, .owner = c};
        c->opened_ms = g.now_ms;
        c->serial = ++accepted;
        c->trusted = g.awaiting && container_trusts(fd);
        c->next = g.conns;
        g.conns = c;
        g.conn_count++;
        watch_set(&c->watch, EPOLLIN);
    }
}

static size_t unsent(const struct conn *c) { return c->out.len - c->out.off; }

/* Handles the whole frames that have arrived; false when the sender must go. */
static bool conn_frames(struct conn *c)
{
    while (!c->closing && unsent(c) < OUT_STOP && c->in.len - c->in.off >= 9) {
        const uint8_t *p = c->in.data + c->in.off;
        uint32_t length = get32(p);
        if (length < 5 || length > (c->greeted || c->trusted ? MAX_FRAME : MAX_HELLO)) return false;
        if (c->in.len - c->in.off < 4 + (size_t)length) return true;
        if (ready_holds_back(c, p[4])) return true;
        if (hush_holds_back(p[4], (struct span){p + 9, length - 5})) return true;
        if (!request(c, p[4], get32(p + 5), (struct span){p + 9, length - 5})) return false;
        explicit_bzero(c->in.data + c->in.off, 4 + (size_t)length); /* it may have carried secrets */
        buf_take(&c->in, 4 + (size_t)length);
    }
    return true;
}

static void conn_read(struct conn *c)
{
    for (int i = 0; i < 4 && !c->closing && unsent(c) < OUT_STOP; i++) {
        uint8_t *p = buf_room(&c->in, CHUNK);
        if (!p) return conn_end(c);
        ssize_t n = read(c->watch.fd, p, c->in.cap - c->in.len);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n <= 0) return conn_end(c);
        c->in.len += (size_t)n;
        if (!conn_frames(c)) return conn_end(c);
        if ((size_t)n < CHUNK) return;
    }
}

static void conn_flush(struct conn *c)
{
    bool was_full = unsent(c) >= OUT_HIGH;
    while (unsent(c)) {
        ssize_t n = write(c->watch.fd, c->out.data + c->out.off, unsent(c));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN) return conn_end(c);
        if (n <= 0) break;
        buf_take(&c->out, (size_t)n);
    }
    if (c->closing) return conn_end(c);
    if (g.parting && !unsent(c) && !c->parted) c->parted = !shutdown(c->watch.fd, SHUT_WR);
    if (was_full && unsent(c) < OUT_HIGH) {
        for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next)
            if (cmd->conn == c && !cmd->dead) exec_refresh(cmd);
        forward_drained(c);
        if (!conn_frames(c)) return conn_end(c);
    }
    watch_set(&c->watch, (unsent(c) < OUT_STOP ? EPOLLIN : 0) | (unsent(c) ? EPOLLOUT : 0));
}

/* What a caller's transfers needed of memory is given back when the last of them is over; more than they need, at once. */
static void conn_shrink(struct conn *c)
{
    size_t most = 2 * CHUNK;
    if (c->in.cap <= most && c->out.cap <= most) return;
    for (struct cmd *cmd = g.cmds; cmd && most < STREAM_MOST; cmd = cmd->next)
        if (cmd->conn == c && !cmd->dead) most = STREAM_MOST;
    buf_shrink(&c->in, most);
    buf_shrink(&c->out, most);
}

static void conns_flush(void)
{
    for (struct conn *c = g.conns; c; c = c->next)
        if (!c->dead && unsent(c)) conn_flush(c);
}

static void conns_tend(void)
{
    for (struct conn *c = g.conns; c; c = c->next) {
        conn_shrink(c);
        if (!c->dead && !c->greeted && g.now_ms - c->opened_ms > HELLO_MS) conn_end(c);
        if (!c->dead && (unsent(c) || c->closing || (g.parting && !c->parted))) conn_flush(c);
    }
    for (struct conn **at = &g.conns; *at;) {
        struct conn *c = *at;
        if (!c->dead) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        buf_free(&c->in);
        buf_free(&c->out);
        free(c);
    }
}

/* -------- the end of the place -------- */

static void kill_everything(void)
{
    if (g.init) kill(-1, SIGKILL); /* one sweep of the kernel: nothing in the namespace can fork past it */
    for (struct cmd *cmd = g.cmds; cmd && !g.init; cmd = cmd->next) {
        if (!cmd->live->supervisor || cmd->dead) continue;
        tree_kill(cmd->live->supervisor);
        kill(cmd->live->supervisor, SIGKILL);
    }
}

static void stop(void) __attribute__((noreturn));
static void stop(void)
{
    uint64_t give_up = clock_ms(CLOCK_MONOTONIC) + STOP_MS;
    struct timespec pause = {.tv_nsec = 1000000};
    pid_t pid = 0;
    kill_everything();
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next) cmd->live->supervisor = 0;
    while (clock_ms(CLOCK_MONOTONIC) < give_up && ((pid = waitpid(-1, NULL, WNOHANG)) >= 0 || errno == EINTR)) {
        if (pid > 0) continue;
        if (!g.init) starter_dismiss(), strays_kill();
        nanosleep(&pause, NULL);
    }
    requests_stopped();
    for (struct conn *c = g.conns; c; c = c->next)
        if (!c->dead) conn_flush(c);
    _exit(g.exit_code);
}

static bool anything_runs(void)
{
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next)
        if (!cmd->dead && !cmd->gone) return true;
    return false;
}

/* -------- signals -------- */

static void reap(void)
{
    int how;
    for (pid_t pid; (pid = waitpid(-1, &how, WNOHANG | WUNTRACED)) > 0;)
        if (WIFSTOPPED(how)) exec_stopped(pid);
        else exec_reaped(pid);
}

/* A signal from outside asks for an orderly end. From inside the place it is nobody's to send: as the namespace's init we ignore it. */
static void asked_to_stop(const struct signalfd_siginfo *s)
{
    if (g.init && s->ssi_pid != 0) return;
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next) {
        if (!cmd->entry || cmd->gone || !cmd->live->main_pid) continue;
        kill(cmd->live->main_pid, (int)s->ssi_signo);
        return;
    }
    if (!container_ends_on((int)s->ssi_signo)) return;
    g.stopping = true;
    g.stop_at = g.now_ms;
}

static void signals_read(void)
{
    struct signalfd_siginfo s;
    while (read(g.signals, &s, sizeof s) == sizeof s) {
        if (s.ssi_signo == SIGCHLD) reap();
        else asked_to_stop(&s);
    }
}

/* -------- the loop -------- */

static int sleep_ms(void)
{
    uint64_t next = exec_next_ms(), parked = forward_next_ms(), boot = clock_ms(CLOCK_BOOTTIME), wait = IDLE_MS;
    if (parked < next) next = parked;
    if (g.stray_ms && g.stray_ms < next) next = g.stray_ms;
    if (g.again_ms && g.again_ms < next) next = g.again_ms;
    if (g.stopping && g.stop_at < next) next = g.stop_at;
    g.now_ms = clock_ms(CLOCK_MONOTONIC);
    if (g.held_back) wait = (uint64_t)g.held_back;
    if (next != NEVER && (next <= g.now_ms || next - g.now_ms < wait)) wait = next <= g.now_ms ? 0 : next - g.now_ms;
    if (g.ttl_at != NEVER) {
        uint64_t left = g.ttl_at <= boot ? 0 : g.ttl_at - boot;
        if (left < wait) wait = left;
    }
    for (struct conn *c = g.conns; c; c = c->next)
        if (!c->greeted && wait > HELLO_MS) wait = HELLO_MS;
    return (int)(wait < IDLE_MS ? wait : IDLE_MS);
}

static void dispatch(struct watch *w, uint32_t events)
{
    if (w->fd < 0) return;
    switch (w->kind) {
    case WATCH_LISTEN: conn_accept(); break;
    case WATCH_SIGNAL: signals_read(); break;
    case WATCH_GUARDIAN: ready_event(); break;
    case WATCH_CONN:
        if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) conn_read(w->owner);
        if (w->fd >= 0 && events & EPOLLOUT) conn_flush(w->owner);
        break;
    case WATCH_PORT: case WATCH_FORWARD: forward_event(w, events); break;
    default: exec_event(w);
    }
}

/* Who waits for an ending hears of it before anything is tidied up. */
static void dispatch_if(const struct epoll_event *e, bool ending)
{
    struct watch *w = e->data.ptr;
    if ((w->kind == WATCH_STATUS) == ending) dispatch(w, e->events);
}

/* Commands that could not start yet are asked for again whenever something has happened. */
static void resume_held_back(void)
{
    if (!g.held_back) return;
    g.held_back = 0;
    for (struct conn *c = g.conns; c; c = c->next)
        if (!c->dead && !conn_frames(c)) conn_end(c);
}

static void tend(void)
{
    g.now_ms = clock_ms(CLOCK_MONOTONIC);
    exec_timers();
    if (g.again_ms && g.now_ms >= g.again_ms) {
        g.again_ms = 0;
        if (!g.stopping) exec_entry(NULL, 0);
    }
    resume_held_back();
    if (g.stray_ms && g.now_ms >= g.stray_ms) g.stray_ms = strays_kill() ? g.now_ms + STRAY_MS : 0;
    requests_settle();
    conns_tend();
    exec_collect();
    forward_collect();
    if (clock_ms(CLOCK_BOOTTIME) >= g.ttl_at) stop();
    if (g.stopping && (g.now_ms >= g.stop_at || (g.parting ? !g.conn_count : !anything_runs()))) stop();
}

static void loop(void) __attribute__((noreturn));
static void loop(void)
{
    struct watch listen = {.fd = g.listen, .kind = WATCH_LISTEN}, signals = {.fd = g.signals, .kind = WATCH_SIGNAL};
    struct epoll_event events[64];
    watch_set(&listen, EPOLLIN);
    watch_set(&signals, EPOLLIN);
    for (;;) {
        int n = epoll_wait(g.epoll, events, 64, sleep_ms());
        g.now_ms = clock_ms(CLOCK_MONOTONIC);
        for (int i = 0; i < n; i++) dispatch_if(&events[i], true);
        conns_flush();
        for (int i = 0; i < n; i++) dispatch_if(&events[i], false);
        tend();
    }
}

/* -------- starting -------- */

static int refuse_to_start(const char *why)
{
    write_all(2, "agentenv-helper: ", 17);
    write_all(2, why, strlen(why));
    write_all(2, "\n", 1);
    return 2;
}

static bool read_config(int fd)
{
    struct buf b = {0};
    for (ssize_t n;;) {
        uint8_t *p = b.len > CONFIG_MAX ? NULL : buf_room(&b, CHUNK);
        if (!p) return false;
        n = read(fd, p, b.cap - b.len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        if (!n) break;
        b.len += (size_t)n;
    }
    close(fd);
    return config_take((struct span){b.data, b.len});
}

bool config_take(struct span whole)
{
    struct config *c = &g.config;
    c->whole = whole;
    if (!tlv_valid(c->whole) || !tlv_find(c->whole, K_TOKEN, &c->token) || !c->token.len) return false;
    if (!tlv_find(c->whole, K_RELAY_TOKEN, &c->relay_token)) c->relay_token = (struct span){0};
    c->epoch = g.highest_epoch = tlv_u64(c->whole, K_EPOCH, 0);
    c->ttl_ms = tlv_u64(c->whole, K_TTL_MS, 0);
    c->flags = tlv_u64(c->whole, K_FLAGS, 0);
    g.hold = c->flags & C_HOLD;
    return true;
}

/* Short turns that come at once: however many run here, the loop is not kept waiting for its few microseconds (kernels before 6.12 take
 * no notice). Whatever it forks begins as if nothing had been asked for. */
static void ask_for_short_turns(void)
{
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; } turns = {
        .size = sizeof turns, .flags = RESET_ON_FORK, .nice = getpriority(PRIO_PROCESS, 0), .runtime = TURN_NS,
    };
    syscall(SYS_sched_setattr, 0, &turns, 0);
}

/* Nothing of ours can be read by what runs here: no dump, no ptrace, no memory, and no environment that the starter left. */
static void harden(void)
{
    struct rlimit files;
    prctl(PR_SET_DUMPABLE, 0);
    for (char **e = environ; e && *e; e++) explicit_bzero(*e, strlen(*e));
    if (environ) *environ = NULL;
    if (!g.awaiting) { /* a container's is told first what its commands may */
        prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE_BIT);
        if (!(g.config.flags & C_NEW_PRIVILEGES)) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    setsid(); /* where each session has an equal share of time, ours is not used up by whoever started and watches us */
    ask_for_short_turns();
    umask(022);
    prlimit(0, RLIMIT_NOFILE, NULL, &files);
    g.nofile_soft = files.rlim_cur;
    g.nofile_hard = files.rlim_max;
    files.rlim_cur = files.rlim_max;
    prlimit(0, RLIMIT_NOFILE, &files, NULL);
}

/* Who shares our user id may make us the kernel's first victim, where /proc can't be protected from it: taken back at every command. */
void score_restore(void)
{
    static int score = -1;
    static char own[8];
    static ssize_t len;
    if (score < 0 && !len) {
        score = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
        len = score < 0 ? -1 : read(score, own, sizeof own);
    }
    if (len > 0 && pwrite(score, own, (size_t)len, 0) < 0) len = -1;
}

static bool set_up(void)
{
    score_restore();
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGHUP);
    if (g.awaiting) container_signals(&mask);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    signal(SIGPIPE, SIG_IGN);
    g.init = getpid() == 1;
    g.signals = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    g.epoll = epoll_create1(EPOLL_CLOEXEC);
    g.proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    g.null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (g.null >= 0) dup2(g.null, 0);
    g.ttl_at = g.config.ttl_ms ? clock_ms(CLOCK_BOOTTIME) + g.config.ttl_ms : NEVER;
    g.now_ms = g.begun_ms = clock_ms(CLOCK_MONOTONIC);
    return g.signals >= 0 && g.epoll >= 0 && g.proc >= 0 && !fcntl(g.listen, F_SETFL, O_NONBLOCK)
        && !fcntl(g.listen, F_SETFD, FD_CLOEXEC) && !chdir("/");
}

int serve_main(int argc, char **argv)
{
    const char *name = NULL;
    int config = -1, guardian = -1, counter = -1;
    struct span entry;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--fd")) g.listen = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--config-fd")) config = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--guardian-fd")) guardian = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--memory-fd")) counter = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--await")) name = argv[i + 1];
        if (!strcmp(argv[i], "--ttl-ms")) g.config.ttl_ms = strtoull(argv[i + 1], NULL, 10);
    }
    if (name && !container_listen(name)) return refuse_to_start("can't listen in its network namespace");
    if (!name && (g.listen < 3 || config < 3)) return refuse_to_start("needs --fd N (a listening socket) and --config-fd M, both above 2");
    if (!name && !read_config(config)) return refuse_to_start("the configuration can't be read or has no token");
    harden();
    keep_only((int[]){g.listen, guardian, counter}, 3);
    limits_begin(counter);
    if (!set_up()) return refuse_to_start("no /proc, or no epoll, or the descriptor is no socket");
    if (!ready_begin(guardian)) return refuse_to_start("--guardian-fd is no socket");
    if (g.config.flags & C_STARTER && !starter_begin()) return refuse_to_start("no room for a second thread");
    if (!(g.config.flags & C_ENTRY_LATER) && tlv_find(g.config.whole, K_ENTRY_ARG, &entry)) exec_entry(NULL, 0);
    loop();
}
