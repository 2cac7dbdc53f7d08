/* Finding and signalling a whole process tree.
 *
 * A command's supervisor is its sub-reaper, so everything that descends from the command, also what called setsid or forked twice, hangs
 * below the supervisor for as long as it lives. Reading is a snapshot: passes are repeated until there is nothing new.
 *
 * Where very many run, passes would never catch up: we are one process among thousands, with a thousandth of the time. There the whole
 * place is stopped by one call of the kernel, which nothing can fork past; what has to be done is done in the silence, and all that is not
 * meant goes on. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "helper.h"

#define PIDS_MAX 32768
#define LOOKS 2       /* one after the other that find all still, before it is believed */
#define BURSTS 8
#define PASSING_MS 30 /* the longest that trees are stopped one by one where all can be stopped at once */
#define SILENCE_MS 1500 /* the longest that a place is held still for a signal that is not the last, */
#define KILL_MS 500     /* and for the last one, which can be repeated */
#define CROWD 96 /* from so many processes on, the place is stopped to signal some of them */

struct process { int pid, parent, child, sibling; char state; bool held; };

static struct process table[PIDS_MAX]; /* by number, as the kernel lists them */
static int table_count;
static int tree[PIDS_MAX]; /* places in the table: parents before their children */
static int tree_count;

/* Calls for the number of every process in sight, until told to stop. */
static void listed(bool (*each)(int pid))
{
    int copy = openat(g.proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = copy < 0 ? NULL : fdopendir(copy);
    if (!listing) {
        if (copy >= 0) close(copy);
        return;
    }
    for (struct dirent *entry; (entry = readdir(listing));) {
        char *end;
        unsigned long pid = strtoul(entry->d_name, &end, 10);
        if (!*end && pid > 0 && !each((int)pid)) break;
    }
    closedir(listing);
}

static int counted;

static bool count_one(int pid)
{
    (void)pid;
    return ++counted < CROWD;
}

/* Whether this is a place of our own that very many run in. Where the root of a tree has been forking, its children's numbers follow on
 * its own: asking for those needs no memory, of which there may be none left. Else the list is looked at, no further than it must be. */
bool tree_crowded(int root)
{
    struct sysinfo machine;
    if (!g.init || (!sysinfo(&machine) && machine.procs < CROWD)) return false;
    counted = 0;
    for (int pid = root + 1; pid < root + 8 * CROWD && counted < CROWD; pid++) counted += !kill(pid, 0);
    if (counted >= CROWD) return true;
    counted = 0;
    listed(count_one);
    return counted >= CROWD;
}

static char *decimal(char *end, unsigned value)
{
    do *--end = (char)('0' + value % 10);
    while (value /= 10);
    return end;
}

/* The parent and state of a process; its name stands in brackets and may hold anything. */
static bool add_one(int pid)
{
    char path[32] = "", text[512], *end = path + 20, *state;
    strcpy(end, "/stat");
    int fd = openat(g.proc, decimal(end, (unsigned)pid), O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return true;
    text[n] = 0;
    state = strrchr(text, ')');
    if (!state || strlen(state) < 5) return true;
    table[table_count++] = (struct process){pid, atoi(state + 4), -1, -1, state[2], false};
    return table_count < PIDS_MAX;
}

static int by_number(const void *key, const void *element) { return *(const int *)key - ((const struct process *)element)->pid; }

static int place_of(int pid)
{
    const struct process *found = bsearch(&pid, table, (size_t)table_count, sizeof *table, by_number);
    return found ? (int)(found - table) : -1;
}

static void look(void)
{
    table_count = 0;
    listed(add_one);
    for (int i = table_count; i--;) {
        int parent = place_of(table[i].parent);
        if (parent < 0) continue;
        table[i].sibling = table[parent].child;
        table[parent].child = i;
    }
}

/* Gathers all that descends from a process; it is not one of them itself. */
static void descend(int root)
{
    tree_count = 0;
    int at = place_of(root), next = 0;
    while (at >= 0) {
        for (int child = table[at].child; child >= 0; child = table[child].sibling) tree[tree_count++] = child;
        at = next < tree_count ? tree[next++] : -1;
    }
}

static int signal_each(int sig)
{
    for (int i = 0; i < tree_count; i++) kill(table[tree[sig == SIGCONT ? tree_count - 1 - i : i]].pid, sig); /* as wake_the_others */
    return tree_count;
}

static void hold(void)
{
    for (int i = 0; i < tree_count; i++) table[tree[i]].held = true;
}

/* Children first: a parent that looks after its children must not see one that has stopped. The trees that were meant come last, as their
 * processes will want the time that this takes. */
static void wake_the_others(const int *roots, int count, int sig)
{
    bool frozen = sig == SIGSTOP;
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next) {
        if (!(cmd->frozen || cmd->hushed) || !cmd->live->supervisor || cmd->dead) continue;
        frozen = true;
        descend(cmd->live->supervisor);
        hold();
    }
    for (int i = 0; i < count; i++) {
        descend(roots[i]);
        hold();
    }
    for (int i = table_count; i--;) {
        if (place_of(table[i].parent) >= 0) continue; /* ours, and those that an engine has put in beside us, as it does our clients' ends */
        descend(table[i].pid);
        for (int j = tree_count; j--;)
            if (!table[tree[j]].held) kill(table[tree[j]].pid, SIGCONT);
        if (table[i].pid != getpid()) kill(table[i].pid, SIGCONT);
    }
    if (!frozen) kill(-1, SIGCONT);
    for (int i = 0; i < count && frozen && sig != SIGSTOP && sig != SIGKILL; i++) {
        descend(roots[i]);
        signal_each(SIGCONT);
    }
}

/* Nothing that has stopped or ended can do more; what was in the middle of a fork ends that first, and its child stops at once. */
static bool all_quiet(void)
{
    for (int i = 0; i < table_count; i++)
        if (table[i].pid != getpid() && !strchr("TtZX", table[i].state)) return false;
    return true;
}

/* How many processes of the trees were found in the table, and whether all of them stood still. */
static int found_still(const int *roots, int count, bool *still)
{
    int found = 0;
    *still = true;
    for (int i = 0; i < count; i++) {
        descend(roots[i]);
        found += tree_count;
        for (int j = 0; j < tree_count; j++) *still &= strchr("TtZX", table[tree[j]].state) != NULL;
    }
    return found;
}

static int signal_in_silence(int root, int sig, uint64_t patience_ms)
{
    struct timespec pause = {.tv_nsec = 2000000};
    uint64_t until = clock_ms(CLOCK_MONOTONIC) + patience_ms;
    int count;
    kill(-1, SIGSTOP);
    for (;;) {
        look();
        descend(root);
        count = signal_each(sig);
        if (all_quiet() || clock_ms(CLOCK_MONOTONIC) > until) break;
        nanosleep(&pause, NULL);
    }
    wake_the_others(&root, 1, sig);
    return count;
}

/* As above, for trees that stay stopped. One that was just waking the rest when the kernel stopped all has undone it: so it is repeated. */
static int stop_in_silence(const int *roots, int count)
{
    uint64_t until = clock_ms(CLOCK_MONOTONIC) + SILENCE_MS;
    bool still = false;
    for (int quiet = 0; quiet < LOOKS && clock_ms(CLOCK_MONOTONIC) < until;) {
        if (!quiet) kill(-1, SIGSTOP);
        look();
        quiet = all_quiet() ? quiet + 1 : 0;
    }
    int found = found_still(roots, count, &still);
    wake_the_others(roots, count, SIGSTOP);
    return found;
}

/* Commands start their own session, so any group found in the tree holds only the tree's processes. */
static void signal_groups(int root, int sig)
{
    for (int i = 0; i < tree_count; i++) {
        int group = getpgid(table[tree[i]].pid);
        if (group > 1 && group != getpgrp() && group != root) kill(-group, sig);
    }
}

/* One pass. */
static int signal_once(int root, int sig, bool groups)
{
    look();
    descend(root);
    if (groups) signal_groups(root, sig);
    return signal_each(sig);
}

/* Stops all that a look finds, in bursts: whoever runs meanwhile has less time to wake the others than it takes to do so. */
static void stop_found(const int *roots, int count)
{
    look();
    for (int burst = 0; burst < BURSTS; burst++) {
        for (int i = 0; i < count; i++) {
            descend(roots[i]);
            if (!burst) signal_groups(roots[i], SIGSTOP);
            signal_each(SIGSTOP);
        }
    }
}

int tree_signal(int root, int sig, bool groups)
{
    return tree_crowded(root) ? signal_in_silence(root, sig, SILENCE_MS) : signal_once(root, sig, groups);
}

/* Asks everything to end within the grace time. */
void tree_terminate(int root, uint64_t grace_ms)
{
    if (tree_crowded(root)) signal_in_silence(root, SIGTERM, grace_ms < SILENCE_MS ? grace_ms : SILENCE_MS);
    else signal_once(root, SIGTERM, false);
}

/* Stops whole trees together, again and again until one look after the other finds the same processes, all of them still: a look is no
 * instant, and who was still running when it began may have woken one that had been looked at. What has stopped can't fork, and can't wake
 * another one. Those that wake each other faster than we pass by are stopped in silence, where we can. */
int trees_freeze(const int *roots, int count)
{
    uint64_t until = clock_ms(CLOCK_MONOTONIC) + (g.init ? PASSING_MS : SILENCE_MS);
    int before = -1, now = 0;
    bool crowded = false;
    for (int i = 0; i < count; i++) crowded |= tree_crowded(roots[i]);
    for (int quiet = 0; !crowded && clock_ms(CLOCK_MONOTONIC) < until; before = now) {
        bool still;
        if (!quiet) stop_found(roots, count);
        look();
        now = found_still(roots, count, &still);
        quiet = still && now == before ? quiet + 1 : 0;
        if (quiet == LOOKS) return now;
    }
    return g.init ? stop_in_silence(roots, count) : now;
}

int tree_freeze(int root) { return trees_freeze(&root, 1); }

/* Returns whether it is done but for the dying; else it is to be repeated. */
bool tree_kill(int root)
{
    if (tree_crowded(root)) {
        signal_in_silence(root, SIGKILL, KILL_MS);
        return true;
    }
    tree_freeze(root);
    for (int pass = 0; pass < 4; pass++)
        if (!signal_once(root, SIGKILL, true)) return true;
    return false;
}

static bool known(int pid)
{
    if (starter_ahead(pid)) return true;
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next)
        if (cmd->live->supervisor == pid && !cmd->gone) return true;
    return false;
}

/* Children of ours that are no supervisors: orphans of a supervisor that somebody killed. Returns how many there were. */
int strays_kill(void)
{
    static int strays[PIDS_MAX];
    int count = 0;
    for (struct cmd *cmd = g.cmds; cmd; cmd = cmd->next)
        if (!cmd->live->supervisor && !cmd->gone && !cmd->dead) return 1; /* one that is being started can't be told from a stray yet */
    look();
    int own = place_of(getpid());
    for (int child = own < 0 ? -1 : table[own].child; child >= 0; child = table[child].sibling)
        if (!known(table[child].pid)) strays[count++] = table[child].pid;
    for (int i = 0; i < count; i++) {
        kill(strays[i], SIGKILL);
        descend(strays[i]);
        signal_each(SIGKILL);
    }
    return count;
}
