/* Hush: while a command that has something to hide gets ready, everything else in the place holds still.
 *
 * All of a place shares one user id, so what an earlier command left running could open a fresh process's memory and descriptors before
 * that can forbid it. It forbids it first thing and then writes one byte to its result pipe, by which we know; that takes milliseconds. */
#include <signal.h>

#include "helper.h"

#define HUSH_MS 3000 /* a command that never gets ready must not hold up the others */
#define STARTING_MS 1 /* between looks whether it has been: nobody tells us */
#define START_MS 1000 /* nor one that can't be started */

/* Whether a command must not start yet: not while another one hushes, whose silence it would break; and one that wants to hush itself not
 * while one is being started, which has no process yet that could be held still. */
bool hush_holds_back(uint8_t type, struct span payload)
{
    if (type != F_EXEC) return false;
    bool wants = tlv_u64(payload, K_FLAGS, 0) & X_RESULT;
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next) {
        if (cmd->dead || cmd->gone || cmd->worker) continue;
        bool starting = !cmd->live->main_pid && !cmd->exited && g.now_ms < cmd->started_us / 1000 + START_MS;
        if (wants && starting) return hold_back(STARTING_MS);
        if (cmd->hush_ms) return hold_back(HELD_BACK_MS);
    }
    return false;
}

void hush_begin(struct cmd *cmd)
{
    static int roots[MAX_COMMANDS];
    int count = 0;
    cmd->hush_ms = g.now_ms + HUSH_MS;
    for (struct cmd *other = g.cmds; other && count < MAX_COMMANDS; other = other->next) {
        if (other == cmd || other->worker || other->dead || other->frozen || other->hushed || other->killing || !other->live->supervisor) continue;
        other->hushed = true;
        roots[count++] = other->live->supervisor;
    }
    if (count) trees_freeze(roots, count);
}

/* Ends what this command asked for; the others go on unless a further one asks for the same. */
void hush_end(struct cmd *cmd)
{
    if (!cmd->hush_ms) return;
    cmd->hush_ms = 0;
    for (struct cmd *other = g.cmds; other; other = other->next)
        if (other->hush_ms) return;
    for (struct cmd *other = g.cmds; other; other = other->next) {
        if (!other->hushed) continue;
        other->hushed = false;
        if (!other->frozen && !other->dead && other->live->supervisor) tree_signal(other->live->supervisor, SIGCONT, false);
    }
}
