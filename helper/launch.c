/* A command's supervisor: becomes the sub-reaper of the tree, starts the command, tells how it went, and reaps until nobody is left.
 *
 * It runs in a fork of the loop, so it may parse, allocate and block at will. It is not dumpable, as the loop is not, and it takes no
 * signal that can be refused. */
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "helper.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

struct plan {
    char **argv, **env;
    size_t env_count;
    const char *cwd, *path;
    char home[300];
    bool set_home;
    struct identity who;
    struct span request;
    const int *stdio;
    int status;
};

void report(int fd, uint32_t kind, int a, int b)
{
    struct status s = {.kind = kind, .a = a, .b = b};
    write_all(fd, &s, sizeof s);
}

static void fail(int fd, enum what what, int error) __attribute__((noreturn));
static void fail(int fd, enum what what, int error)
{
    report(fd, S_FAILED, what, error);
    _exit(127);
}

/* The lowest of the descriptors from `first` on, or `none`. */
static unsigned next_of(const int *kept, int count, unsigned first, unsigned none)
{
    for (int i = 0; i < count; i++)
        if (kept[i] >= (int)first && (unsigned)kept[i] < none) none = (unsigned)kept[i];
    return none;
}

/* Closes everything from 3 up but these; a number below is nothing to keep. */
void keep_only(const int *kept, int count)
{
    unsigned first = 3, none = INT_MAX;
    for (unsigned next; first < none; first = next + 1) {
        next = next_of(kept, count, first, none);
        if (next > first && syscall(SYS_close_range, first, next - 1, 0)) break;
    }
    for (; first < 65536; first++)
        if (next_of(kept, count, first, none) != first) close((int)first);
}

static size_t count_key(struct span payload, uint16_t wanted)
{
    uint16_t key;
    struct span value;
    size_t count = 0;
    while (tlv_next(&payload, &key, &value)) count += key == wanted;
    return count;
}

/* The texts of one key, appended to a list. False when one holds a zero byte. */
static bool texts(struct span payload, uint16_t wanted, char **list, size_t *count)
{
    uint16_t key;
    struct span value;
    while (tlv_next(&payload, &key, &value)) {
        if (key != wanted) continue;
        if (!(list[*count] = span_text(value))) return false;
        ++*count;
    }
    return true;
}

static char *variable(const struct plan *p, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = p->env_count; i--;)
        if (!strncmp(p->env[i], name, len) && p->env[i][len] == '=') return p->env[i] + len + 1;
    return NULL;
}

/* A later value of a name replaces an earlier one: the kernel would hand over both. */
static void environment_dedupe(struct plan *p)
{
    size_t kept = 0;
    for (size_t i = 0; i < p->env_count; i++) {
        const char *equal = strchr(p->env[i], '=');
        size_t len = equal ? (size_t)(equal - p->env[i]) + 1 : strlen(p->env[i]) + 1, j = 0;
        while (j < kept && strncmp(p->env[j], p->env[i], len)) j++;
        p->env[j] = p->env[i];
        kept += j == kept;
    }
    p->env_count = kept;
    p->env[kept] = NULL;
}

static bool environment_build(struct plan *p)
{
    size_t room = count_key(g.config.whole, K_ENV) + count_key(p->request, K_ENV) + 3;
    if (!(p->env = calloc(room, sizeof *p->env))) return false;
    if (!texts(g.config.whole, K_ENV, p->env, &p->env_count)) return false;
    size_t defaults = p->env_count;
    if (!texts(p->request, K_ENV, p->env, &p->env_count)) return false;
    bool home_given = false;
    for (size_t i = defaults; i < p->env_count; i++) home_given |= !strncmp(p->env[i], "HOME=", 5);
    environment_dedupe(p);
    if (!(p->path = variable(p, "PATH"))) {
        p->env[p->env_count++] = (char *)"PATH=" DEFAULT_PATH;
        p->path = DEFAULT_PATH;
    }
    struct span user;
    p->set_home = !home_given && (tlv_find(p->request, K_USER, &user) || !variable(p, "HOME"));
    return true;
}

static bool usable(const char *folder) { return *folder == '/' && !access(folder, W_OK | X_OK); }

/* HOME by one rule: the user's own if it can be written, else the first of these that can. Never another user's by accident. */
static void choose_home(struct plan *p)
{
    static const char *const others[] = {"/tmp", "/var/tmp", "/dev/shm"};
    const char *home = strcmp(p->who.home, "/") && usable(p->who.home) ? p->who.home : NULL;
    for (size_t i = 0; !home && i < sizeof others / sizeof *others; i++)
        if (usable(others[i])) home = others[i];
    if (!home) home = usable(p->cwd) ? p->cwd : "/";
    size_t at = p->env_count;
    for (size_t i = 0; i < p->env_count; i++)
        if (!strncmp(p->env[i], "HOME=", 5)) at = i;
    if (strlen(home) > sizeof p->home - 6) home = "/";
    strcpy(p->home, "HOME=");
    strcat(p->home, home);
    p->env[at] = p->home;
    if (at == p->env_count) p->env[++p->env_count] = NULL;
}

static void become(const struct plan *p)
{
    const struct identity *who = &p->who;
    if (who->uid == getuid() && who->gid == getgid()) return;
    gid_t list[65] = {who->gid};
    for (int i = 0; i < who->group_count; i++) list[i + 1] = who->groups[i];
    if (syscall(SYS_setgroups, (size_t)who->group_count + 1, list) && syscall(SYS_setgroups, (size_t)0, NULL)) fail(p->status, W_IDENTITY, errno);
    if (syscall(SYS_setresgid, who->gid, who->gid, who->gid)) fail(p->status, W_IDENTITY, errno);
    if (syscall(SYS_setresuid, who->uid, who->uid, who->uid)) fail(p->status, W_IDENTITY, errno);
}

static void apply_limits(const struct plan *p, struct span rest)
{
    struct span value;
    uint16_t key;
    while (tlv_next(&rest, &key, &value)) {
        if (key != K_RLIMIT || value.len != 20) continue;
        struct rlimit limit = {get64(value.data + 4), get64(value.data + 12)};
        if (prlimit(0, (int)get32(value.data), &limit, NULL)) fail(p->status, W_LIMIT, errno);
    }
}

static void set_limits(const struct plan *p)
{
    struct rlimit files = {g.nofile_soft, g.nofile_hard};
    prlimit(0, RLIMIT_NOFILE, &files, NULL); /* the loop raised its own */
    apply_limits(p, g.config.whole);  /* the place's, then the command's */
    apply_limits(p, p->request);
}

/* execve says ENOENT also for a script whose interpreter is missing; the two need different remedies. */
static void run_program(struct plan *p, const char *program, int *error)
{
    execve(program, p->argv, p->env);
    int why = errno;
    if (why == E2BIG) fail(p->status, W_ARGUMENTS, why);
    if (why == ENOENT && !access(program, F_OK)) fail(p->status, W_INTERPRETER, why);
    if (why != ENOENT && why != ENOTDIR) *error = why;
}

static void run_along_path(struct plan *p)
{
    int error = ENOENT;
    if (strchr(p->argv[0], '/')) {
        run_program(p, p->argv[0], &error);
        fail(p->status, W_PROGRAM, error);
    }
    char program[4096];
    size_t name = strlen(p->argv[0]);
    for (const char *at = p->path; name; at++) {
        size_t len = strcspn(at, ":");
        if (len + name + 2 <= sizeof program) {
            memcpy(program, at, len);
            if (!len) program[len++] = '.';
            program[len] = '/';
            strcpy(program + len + 1, p->argv[0]);
            run_program(p, program, &error);
        }
        at += strcspn(at, ":");
        if (!*at) break;
    }
    fail(p->status, W_PROGRAM, error);
}

/* Runs with the supervisor's memory until it has become the program (or in a copy of it, where that is emulated). */
static int child(void *argument)
{
    struct plan *p = argument;
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL);
    setsid();
    for (int i = 0; i < 3; i++)
        if (p->stdio[i] != i && dup2(p->stdio[i], i) < 0) fail(p->status, W_RESOURCES, errno);
    if (p->stdio[RESULT_FD] >= 0 && dup2(p->stdio[RESULT_FD], RESULT_FD) < 0) fail(p->status, W_RESOURCES, errno);
    set_limits(p);
    own_streams(&p->who);
    become(p);
    if (chdir(p->cwd)) fail(p->status, W_CWD, errno);
    if (p->set_home) choose_home(p);
    sigprocmask(SIG_SETMASK, &none, NULL);
    run_along_path(p);
    return 127;
}

/* Its own ends of the output are kept until the command has ended, so that the loop hears of that first, and not of each pipe before. */
static void reap(const struct plan *p, pid_t main_pid)
{
    struct rusage usage;
    int how;
    for (pid_t pid; (pid = wait4(-1, &how, 0, &usage)) > 0 || errno == EINTR;) {
        if (pid != main_pid) continue;
        struct status s = {
            .kind = S_EXITED, .a = how,
            .user_us = (uint64_t)usage.ru_utime.tv_sec * 1000000 + (uint64_t)usage.ru_utime.tv_usec,
            .system_us = (uint64_t)usage.ru_stime.tv_sec * 1000000 + (uint64_t)usage.ru_stime.tv_usec,
            .rss_kb = (uint64_t)usage.ru_maxrss,
        };
        write_all(p->status, &s, sizeof s);
        if (wait4(-1, &how, WNOHANG, NULL) < 0) return; /* nobody is left: all is closed at once */
        for (int i = 1; i < 3; i++)
            if (p->stdio[i] > 2) close(p->stdio[i]);
    }
}

void supervise(const struct launch *l)
{
    static char stack[64 << 10] __attribute__((aligned(16)));
    struct plan p = {.request = l->request, .stdio = l->stdio, .status = l->status};
    struct span value;
    sigset_t all;
    size_t argc = 0;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    l->live->supervisor = getpid();
    bool entry = !count_key(p.request, K_ARG);
    uint16_t words = entry ? K_ENTRY_ARG : K_ARG;
    p.argv = calloc(count_key(p.request, words) + 1, sizeof *p.argv);
    if (!p.argv || !texts(p.request, words, p.argv, &argc) || !argc) fail(p.status, W_ARGUMENTS, EINVAL);
    if (!environment_build(&p)) fail(p.status, W_ARGUMENTS, EINVAL);
    p.cwd = "/";
    if (tlv_find(p.request, K_CWD, &value) || tlv_find(g.config.whole, K_CWD, &value)) p.cwd = span_text(value);
    if (!p.cwd) fail(p.status, W_CWD, EINVAL);
    int error;
    if (tlv_find(p.request, K_USER, &value)) {
        char *spec = span_text(value);
        error = spec ? identity_find(spec, &p.who) : EINVAL;
    } else {
        error = identity_default(&p.who, p.set_home);
    }
    if (error) fail(p.status, W_USER, error);
    if (l->live->called_off) _exit(0);
    pid_t pid = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &p);
    if (pid < 0) fail(p.status, W_RESOURCES, errno);
    l->live->main_pid = pid;
    if (entry || tlv_u64(p.request, K_FLAGS, 0) & X_STARTED) report(p.status, S_STARTED, pid, 0);
    for (int i = 0; i < 3; i++) close(i);
    keep_only((int[]){p.status, p.stdio[1], p.stdio[2]}, 3);
    reap(&p, pid);
    _exit(0);
}
