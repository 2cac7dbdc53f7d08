/* The starter: a thread of ours that does nothing but fork supervisors.
 *
 * Limits of a place that the kernel holds are a control group's, and who is forked belongs to the group of the thread that forks. So the
 * starter alone stands in the place's group, and the loop outside of it: a place that has used up its time or its memory holds up what
 * starts in it, never the answer to who asks how it ended. A thread of PID 1 can't be signalled from inside, as another process could. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "helper.h"

#define STACK_BYTES (256u << 10)

static int jobs[2] = {-1, -1};

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
    for (struct launch *job; read_all(jobs[0], &job, sizeof job);) start(job);
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
