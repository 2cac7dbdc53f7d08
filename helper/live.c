/* The numbers of what runs, where both sides see them: a supervisor writes them down as it learns them, and the loop is not woken for it. No
 * command sees this memory, for it goes with the program that it replaces. */
#include <sys/mman.h>

#include "helper.h"

#define LIVE_MAX (2 * MAX_COMMANDS)

/* Room for the numbers of one more command, in memory that is shared with what is forked from here; NULL where there is none. */
struct live *live_take(void)
{
    static struct live *all;
    static unsigned next;
    if (!all) {
        all = mmap(NULL, LIVE_MAX * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (all == MAP_FAILED) return all = NULL;
    }
    for (unsigned i = 0; i < LIVE_MAX; i++) {
        struct live *live = &all[next++ % LIVE_MAX];
        if (live->used) continue;
        live->used = true;
        live->supervisor = live->main_pid = 0;
        live->begun = live->called_off = false;
        return live;
    }
    return NULL;
}
