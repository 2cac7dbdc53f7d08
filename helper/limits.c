/* Which of the place's own limits a command ran into. The kernel counts what it ends for memory; the guardian tells what it ends itself.
 *
 * Both speak of the whole place, and nobody says whose process it was. So a command that ends badly meanwhile is blamed on memory only
 * where it can be nothing else: it was killed, or a shell says so of its child (128 + 9), or nothing ran beside it. Of the disk all
 * commands are ended together. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "helper.h"
#include "ready.h"

static int counter = -1;
static struct limits told; /* by the guardian */

/* A container sees its own group. Other places are given its counter, which they could not find by a name. */
void limits_begin(int given)
{
    static const char *const own[] = {"/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events"};
    counter = given < 3 ? -1 : fcntl(given, F_SETFD, FD_CLOEXEC) ? -1 : given;
    for (size_t i = 0; counter < 0 && i < sizeof own / sizeof *own; i++) counter = open(own[i], O_RDONLY | O_CLOEXEC);
}

void limits_told(char word)
{
    if (word == TELL_MEMORY) told.watched++;
    if (word == TELL_DISK) told.disk++;
}

/* How often each has been reached so far. */
struct limits limits_now(void)
{
    char text[512];
    struct limits now = told;
    ssize_t n = counter < 0 ? -1 : pread(counter, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    const char *kills = strstr(text, "oom_kill ");
    if (kills) now.killed = strtoull(kills + strlen("oom_kill "), NULL, 10);
    return now;
}

/* What a command that has just ended ran into. */
enum reached limits_reached(const struct cmd *cmd)
{
    int how = cmd->ending.a;
    bool killed = WIFSIGNALED(how) ? WTERMSIG(how) == SIGKILL : WEXITSTATUS(how) == 128 + SIGKILL;
    if (!how || cmd->killing || cmd->worker) return REACHED_NOTHING;
    ready_event(); /* the guardian tells before it kills */
    struct limits now = limits_now();
    if (now.disk > cmd->before.disk) return REACHED_DISK;
    if (!killed && cmd->accompanied) return REACHED_NOTHING;
    if (now.killed > cmd->before.killed) return REACHED_MEMORY;
    return now.watched > cmd->before.watched ? REACHED_WATCHED_MEMORY : REACHED_NOTHING;
}
