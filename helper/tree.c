/* Finding and signalling a whole process tree.
 *
 * A command's supervisor is its sub-reaper, so everything that descends from the command, also what called setsid or forked twice, hangs
 * below the supervisor for as long as it lives. Reading is a snapshot: passes are repeated until there is nothing new. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "helper.h"

#define PIDS_MAX 32768
#define PASSES 24

static int pids[PIDS_MAX];
static int pid_count;

static char *decimal(char *end, unsigned value)
{
    do *--end = (char)('0' + value % 10);
    while (value /= 10);
    return end;
}

static void add_children(int fd)
{
    char text[4096];
    ssize_t n;
    unsigned value = 0;
    while ((n = read(fd, text, sizeof text)) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                value = value * 10 + (unsigned)(text[i] - '0');
            } else if (value) {
                if (pid_count < PIDS_MAX) pids[pid_count++] = (int)value;
                value = 0;
            }
        }
    }
}

/* A thread's children are listed under that thread. */
static void children_of(int pid)
{
    char path[64], *end = path + sizeof path;
    *--end = 0;
    end -= 5;
    memcpy(end, "/task", 5);
    int tasks = openat(g.proc, decimal(end, (unsigned)pid), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = tasks < 0 ? NULL : fdopendir(tasks);
    if (!listing) {
        if (tasks >= 0) close(tasks);
        return;
    }
    for (struct dirent *entry; (entry = readdir(listing));) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) > 16) continue;
        char name[32];
        strcpy(name, entry->d_name);
        strcat(name, "/children");
        int fd = openat(tasks, name, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        add_children(fd);
        close(fd);
    }
    closedir(listing);
}

static void collect(int root)
{
    pid_count = 0;
    children_of(root);
    for (int i = 0; i < pid_count; i++) children_of(pids[i]);
}

/* One pass. Commands start their own session, so any group found in the tree holds only the tree's processes. */
int tree_signal(int root, int sig, bool groups)
{
    collect(root);
    for (int i = 0; i < pid_count; i++) {
        int group = groups ? getpgid(pids[i]) : 0;
        if (group > 1 && group != getpgrp() && group != root) kill(-group, sig);
        kill(pids[i], sig);
    }
    return pid_count;
}

/* Stops everything, again and again until a pass finds no more than the one before: a stopped process can't fork. */
int tree_freeze(int root)
{
    int before = -1, now = 0;
    for (int pass = 0; pass < PASSES && now != before; pass++) {
        before = now;
        now = tree_signal(root, SIGSTOP, true);
    }
    return now;
}

void tree_kill(int root)
{
    for (int pass = 0; pass < 4; pass++)
        if (!tree_signal(root, SIGKILL, true)) return;
}

static bool known(int pid)
{
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next)
        if (cmd->supervisor == pid && !cmd->gone) return true;
    return false;
}

/* Children of ours that are no supervisors: orphans of a supervisor that somebody killed. Returns how many there were. */
int strays_kill(void)
{
    static int direct[PIDS_MAX];
    int found = 0;
    pid_count = 0;
    children_of(getpid());
    int count = pid_count;
    memcpy(direct, pids, (size_t)count * sizeof *direct);
    for (int i = 0; i < count; i++) {
        if (known(direct[i])) continue;
        found++;
        kill(direct[i], SIGKILL);
        tree_signal(direct[i], SIGKILL, true);
    }
    return found;
}
