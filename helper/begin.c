/* How a command starts: its pipes, and a supervisor at their other ends that is forked here, by the starter, or was ahead. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "helper.h"

struct pipes { int in[2], out[2], err[2], result[2], status[2]; };

static void close_pair(int pair[2])
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0) close(pair[i]);
}

static void close_pipes(struct pipes *p)
{
    close_pair(p->in);
    close_pair(p->out);
    close_pair(p->err);
    close_pair(p->result);
    close_pair(p->status);
}

/* Fewer turns a megabyte; where the kernel grants no more room, the pipe stays as it is. */
static void widen(const struct pipes *p)
{
    fcntl(p->in[1], F_SETPIPE_SZ, FILES_PIPE);
    fcntl(p->out[0], F_SETPIPE_SZ, FILES_PIPE);
}

static bool open_pipes(struct pipes *p, bool wants_in, bool wants_result)
{
    memset(p, -1, sizeof *p);
    if ((wants_in || g.null < 0) && pipe2(p->in, O_CLOEXEC)) return false;
    if (wants_result && pipe2(p->result, O_CLOEXEC)) return false;
    return !pipe2(p->out, O_CLOEXEC) && !pipe2(p->err, O_CLOEXEC) && !pipe2(p->status, O_CLOEXEC);
}

static void worker_run(uint8_t type, struct span payload, const struct pipes *p) __attribute__((noreturn));
static void worker_run(uint8_t type, struct span payload, const struct pipes *p)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not be so large is an error of that file */
    dup2(p->in[0], 0);
    dup2(p->out[1], 1);
    keep_only(&p->status[1], 1);
    int code = type == F_FILES ? files_main(payload) : tcp_main(payload);
    struct status s = {.kind = S_EXITED, .a = code << 8};
    close(1);
    write_all(p->status[1], &s, sizeof s);
    _exit(code);
}

/* Returns -1 where there can be no new process. The starter, where it is asked for it, then has the child's ends of the pipes. */
static int spawn(uint8_t type, struct span payload, struct pipes *p, struct live *live)
{
    struct launch l = {payload, {p->in[0] >= 0 ? p->in[0] : g.null, p->out[1], p->err[1], p->result[1]}, p->status[1], live};
    if (type == F_EXEC && starter_serves()) {
        if (!starter_take(&l)) return -1;
        p->in[0] = p->out[1] = p->err[1] = p->result[1] = p->status[1] = -1;
        return 0;
    }
    int pid = fork();
    if (pid > 0) live->supervisor = pid;
    if (pid) return pid;
    if (type != F_EXEC) worker_run(type, payload, p);
    supervise(&l);
}

static void watch_own(struct watch *w, int *fd, uint8_t kind, struct cmd *cmd)
{
    *w = (struct watch){.fd = *fd, .kind = kind, .owner = cmd};
    if (*fd >= 0) fcntl(*fd, F_SETFL, O_NONBLOCK);
    *fd = -1;
}

/* The loop's ends of its pipes, which are its own from here on. */
static void watch_pipes(struct cmd *cmd, struct pipes *p)
{
    watch_own(&cmd->in, &p->in[1], WATCH_IN, cmd);
    watch_own(&cmd->out[0].watch, &p->out[0], WATCH_OUT, cmd);
    watch_own(&cmd->out[1].watch, &p->err[0], WATCH_ERR, cmd);
    watch_own(&cmd->out[2].watch, &p->result[0], WATCH_RESULT, cmd);
    watch_own(&cmd->status, &p->status[0], WATCH_STATUS, cmd);
    watch_set(&cmd->status, EPOLLIN);
}

/* False, with errno, where there is no room for another one. */
static bool begin(struct cmd *cmd, struct span payload, uint8_t type, bool wants_in, bool wants_result)
{
    struct pipes p;
    bool done = open_pipes(&p, wants_in, wants_result);
    if (done && type == F_FILES) widen(&p);
    done = done && spawn(type, payload, &p, cmd->live) >= 0;
    int error = errno;
    if (!wants_in) close_pair(p.in), p.in[0] = p.in[1] = -1;
    if (done) watch_pipes(cmd, &p);
    close_pipes(&p);
    errno = error;
    return done;
}

/* To the supervisor that was forked ahead, where there is one. It has pipes for what a plain command prints, and no others. */
static bool hand_over(struct cmd *cmd, struct span payload)
{
    struct ends ends;
    if (!starter_hand_over(payload, cmd->live, &ends)) return false;
    uint8_t *copy = buf_room(&cmd->handed, payload.len);
    if (copy) memcpy(copy, payload.data, cmd->handed.len = payload.len);
    watch_pipes(cmd, &(struct pipes){{-1, -1}, {ends.out, -1}, {ends.err, -1}, {-1, -1}, {ends.status, -1}});
    return true;
}

static void copy_text(char *to, size_t room, struct span value)
{
    size_t n = value.len < room - 1 ? value.len : room - 1;
    memcpy(to, value.data, n);
    to[n] = 0;
}

static void cmd_settings(struct cmd *cmd, struct span payload, uint16_t program)
{
    struct span value;
    uint64_t timeout = tlv_u64(payload, K_TIMEOUT_MS, 0);
    cmd->want_started = tlv_u64(payload, K_FLAGS, 0) & X_STARTED;
    cmd->grace_ms = tlv_u64(payload, K_GRACE_MS, 0);
    cmd->deadline_ms = timeout && timeout < NEVER - g.now_ms ? g.now_ms + timeout : NEVER;
    cmd->kill_ms = NEVER;
    cmd->window = cmd->credit = tlv_u64(payload, K_WINDOW, 0);
    cmd->in_window = IN_WINDOW;
    cmd->rejoin = tlv_u64(payload, K_REJOIN, 0);
    cmd->out[0].limit = tlv_u64(payload, K_LIMIT_OUT, NEVER);
    cmd->out[1].limit = tlv_u64(payload, K_LIMIT_ERR, NEVER);
    cmd->out[2].limit = NEVER;
    cmd->started_us = clock_us();
    if (tlv_find(payload, K_ATTEMPT, &value)) copy_text(cmd->attempt, sizeof cmd->attempt, value);
    if (tlv_find(payload, program, &value)) copy_text(cmd->argv0, sizeof cmd->argv0, value);
}

static void cmd_add(struct cmd *cmd)
{
    for (struct cmd *other = g.cmds; other && !cmd->worker; other = other->next)
        if (!other->worker && !other->dead && !other->gone) cmd->accompanied = other->accompanied = true;
    cmd->next = g.cmds;
    g.cmds = cmd;
    g.cmd_count++;
}

void exec_start(struct conn *c, uint32_t stream, struct span payload, uint8_t type)
{
    bool wants_in = type != F_EXEC || tlv_u64(payload, K_FLAGS, 0) & X_STDIN;
    bool wants_result = type == F_EXEC && tlv_u64(payload, K_FLAGS, 0) & X_RESULT;
    uint64_t number = type == F_EXEC ? tlv_u64(payload, K_REJOIN, 0) : 0;
    if (number && !rejoin_may_begin(c, number)) return; /* it came late, over a connection that its caller has given up */
    struct cmd *cmd = g.cmd_count < MAX_COMMANDS ? calloc(1, sizeof *cmd) : NULL;
    if (!cmd) return exec_failed(c, stream, W_RESOURCES, EAGAIN);
    cmd_settings(cmd, payload, K_ARG); /* before it runs: its time is counted from here */
    score_restore();
    if (wants_result) hush_begin(cmd);
    cmd->before = limits_now();
    cmd->conn = c;
    cmd->serial = c->serial;
    cmd->stream = stream;
    cmd->worker = type != F_EXEC;
    cmd->files = type == F_FILES;
    bool plain = type == F_EXEC && !wants_in && !wants_result, done = false;
    if (!(cmd->live = live_take())) errno = EAGAIN;
    else done = (plain && hand_over(cmd, payload)) || begin(cmd, payload, type, wants_in, wants_result);
    if (!done) {
        int error = errno;
        if (cmd->live) cmd->live->used = false;
        hush_end(cmd);
        free(cmd);
        return exec_failed(c, stream, W_RESOURCES, error);
    }
    cmd_add(cmd);
    exec_refresh(cmd);
}

/* Where the supervisor that was forked ahead was killed before it began: by whoever killed all that he saw, who could not mean this. */
bool exec_begun_anew(struct cmd *cmd)
{
    struct buf *request = &cmd->handed;
    if (!request->len || cmd->live->begun || cmd->exited || cmd->killing) return false;
    for (int i = 0; i < OUTS; i++) watch_close(&cmd->out[i].watch);
    watch_close(&cmd->status);
    bool done = begin(cmd, (struct span){request->data, request->len}, F_EXEC, false, false);
    buf_free(request);
    return done;
}

/* The image's own entrypoint, as a command whose streams are this process's own. */
void exec_entry(struct conn *c, uint32_t stream)
{
    struct cmd *cmd = calloc(1, sizeof *cmd);
    int status[2];
    if (!cmd || !(cmd->live = live_take()) || pipe2(status, O_CLOEXEC)) _exit(70);
    struct launch l = {g.config.whole, {0, 1, 2, -1}, status[1], cmd->live};
    if (starter_serves()) {
        if (!starter_take(&l)) _exit(71);
    } else {
        int pid = fork();
        if (pid < 0) _exit(71);
        if (!pid) supervise(&l);
        cmd->live->supervisor = pid;
        close(status[1]);
    }
    cmd->entry = true;
    cmd_settings(cmd, (struct span){0}, 0);
    cmd_settings(cmd, g.config.whole, K_ENTRY_ARG);
    cmd->deadline_ms = NEVER;
    cmd->conn = c;
    cmd->stream = stream;
    cmd->want_started = true;
    watch_pipes(cmd, &(struct pipes){{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}, {status[0], -1}});
    cmd_add(cmd);
}
