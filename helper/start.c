/* The starter: a thread of ours that does nothing but fork supervisors.
 *
 * Limits of a place that the kernel holds are a control group's, and who is forked belongs to the group of the thread that forks. So the
 * starter alone stands in the place's group, and the loop outside of it: a place that has used up its time or its memory holds up what
 * starts in it, never the answer to who asks how it ended. A thread of PID 1 can't be signalled from inside, as another process could.
 *
 * Once a place has run a command, the starter keeps one supervisor ahead, with its pipes open, that waits for nothing but a request: then
 * the next command waits neither for this thread to wake nor for a fork. */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "helper.h"

#define STACK_BYTES (256u << 10)
#define AHEAD_REQUEST (PIPE_BUF - sizeof(struct live *)) /* a pipe takes it at once or not at all */

static int jobs[2] = {-1, -1}; /* a job is a launch; NULL asks for no more than a supervisor ahead */

/* The supervisor ahead. The starter writes it down before it stands there; the loop takes it away, and only then asks for another one. */
static struct { int pid, request; struct ends ends; } ahead;
static _Atomic bool stands;

/* -------- one ahead -------- */

static void ahead_wait(int request, const struct launch *launch) __attribute__((noreturn));
static void ahead_wait(int request, const struct launch *launch)
{
    static uint8_t told[PIPE_BUF];
    struct launch l = *launch;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (int i = 0; i < 3; i++) dup2(g.null, i);
    keep_only((int[]){g.null, request, l.status, l.stdio[1], l.stdio[2]}, 5); /* nobody else's pipe or caller is kept open by it */
    ssize_t n = read(request, told, sizeof told);
    if (n <= (ssize_t)sizeof l.live) _exit(0);
    memcpy(&l.live, told, sizeof l.live);
    l.request = (struct span){told + sizeof l.live, (size_t)n - sizeof l.live};
    l.live->begun = true;
    close(request);
    supervise(&l);
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0) close(fds[i]);
}

static void ahead_fork(void)
{
    int request[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, status[2] = {-1, -1};
    if (stands || g.null < 0) return;
    bool open = !pipe2(request, O_CLOEXEC) && !pipe2(out, O_CLOEXEC) && !pipe2(err, O_CLOEXEC) && !pipe2(status, O_CLOEXEC);
    int pid = open ? fork() : -1;
    if (!pid) ahead_wait(request[0], &(struct launch){.stdio = {g.null, out[1], err[1], -1}, .status = status[1]});
    close_all((int[]){request[0], out[1], err[1], status[1]}, 4);
    if (pid < 0) return close_all((int[]){request[1], out[0], err[0], status[0]}, 4);
    fcntl(request[1], F_SETFL, O_NONBLOCK);
    ahead.pid = pid;
    ahead.request = request[1];
    ahead.ends = (struct ends){out[0], err[0], status[0]};
    stands = true;
}

bool starter_ahead(int pid) { return stands && ahead.pid == pid; }

/* Without a request it ends. The next command is started by the thread, which has another one follow. */
void starter_dismiss(void)
{
    if (!stands) return;
    close_all((int[]){ahead.request, ahead.ends.out, ahead.ends.err, ahead.ends.status}, 4);
    stands = false;
}

void starter_reaped(int pid)
{
    if (starter_ahead(pid)) starter_dismiss();
}

bool starter_hand_over(struct span request, struct live *live, struct ends *ends)
{
    if (!stands || request.len > AHEAD_REQUEST) return false;
    struct iovec parts[] = {{&live, sizeof live}, {(void *)(uintptr_t)request.data, request.len}};
    struct launch *none = NULL;
    bool taken = writev(ahead.request, parts, 2) > 0;
    if (!taken) return starter_dismiss(), false;
    close(ahead.request);
    *ends = ahead.ends;
    stands = false;
    write_all(jobs[1], &none, sizeof none);
    return true;
}

/* -------- one by one -------- */

/* In the fork nothing but the caller's thread goes on; it leaves the job alone, for it never returns. */
static void start(struct launch *job)
{
    int pid = fork();
    if (!pid) supervise(job);
    if (pid < 0) report(job->status, S_FAILED, W_RESOURCES, errno);
    for (int i = 0; i <= RESULT_FD; i++)
        if (job->stdio[i] > 2 && job->stdio[i] != g.null) close(job->stdio[i]);
    close(job->status);
    explicit_bzero(job + 1, job->request.len); /* it may have carried secrets */
    free(job);
}

static void *serve(void *nothing)
{
    for (struct launch *job; read_all(jobs[0], &job, sizeof job); ahead_fork())
        if (job) start(job);
    return nothing;
}

bool starter_begin(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    if (pipe2(jobs, O_CLOEXEC) || pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, STACK_BYTES)) return false;
    return !pthread_create(&thread, &attributes, serve, NULL);
}

bool starter_serves(void) { return jobs[1] >= 0; }

/* Takes over the request, copied, and the descriptors. The pipe holds more jobs than there can be commands. */
bool starter_take(const struct launch *l)
{
    struct launch *job = malloc(sizeof *job + l->request.len);
    if (!job) return false;
    *job = *l;
    memcpy(job + 1, l->request.data, l->request.len);
    job->request.data = (uint8_t *)(job + 1);
    return write_all(jobs[1], &job, sizeof job);
}
