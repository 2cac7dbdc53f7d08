/* What runs here and what ran last, for an owner that comes later. */
#include <sys/wait.h>

#include "helper.h"

struct past { int pid, how; bool timed_out; char attempt[ATTEMPT_MAX + 1], argv0[ARGV0_MAX]; };

static struct past past[LEDGER_MAX];
static unsigned past_count;

void ledger_remember(const struct cmd *cmd)
{
    struct past *p = &past[past_count++ % LEDGER_MAX];
    p->pid = cmd->live->main_pid;
    p->how = cmd->failed ? 127 << 8 : cmd->ending.a;
    p->timed_out = cmd->timed_out;
    memcpy(p->attempt, cmd->attempt, sizeof p->attempt);
    memcpy(p->argv0, cmd->argv0, sizeof p->argv0);
}

/* pid, running, how (0 exited, 1 signalled), code, timed out, attempt and argv0 with their lengths. */
static void entry(struct conn *c, uint32_t stream, bool running, const struct past *e)
{
    uint8_t p[16 + ATTEMPT_MAX + ARGV0_MAX] = {0};
    size_t attempt = strlen(e->attempt), argv0 = strlen(e->argv0);
    put32(p, (uint32_t)e->pid);
    p[4] = running;
    p[5] = WIFSIGNALED(e->how);
    p[6] = e->timed_out;
    put32(p + 7, (uint32_t)(WIFSIGNALED(e->how) ? WTERMSIG(e->how) : WEXITSTATUS(e->how)));
    p[11] = (uint8_t)attempt;
    p[12] = (uint8_t)argv0;
    memcpy(p + 13, e->attempt, attempt);
    memcpy(p + 13 + attempt, e->argv0, argv0);
    conn_send(c, F_LEDGER_ENTRY, stream, p, 13 + attempt + argv0);
}

void ledger_send(struct conn *c, uint32_t stream)
{
    uint8_t done[8] = {0};
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next) {
        struct past now = {.pid = cmd->live->main_pid, .how = cmd->ending.a, .timed_out = cmd->timed_out};
        if (cmd->dead || cmd->gone || cmd->worker) continue;
        memcpy(now.attempt, cmd->attempt, sizeof now.attempt);
        memcpy(now.argv0, cmd->argv0, sizeof now.argv0);
        entry(c, stream, true, &now);
    }
    for (unsigned i = past_count > LEDGER_MAX ? past_count - LEDGER_MAX : 0; i < past_count; i++)
        entry(c, stream, false, &past[i % LEDGER_MAX]);
    conn_send(c, F_DONE, stream, done, sizeof done);
}
