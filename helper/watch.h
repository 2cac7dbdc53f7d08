/* The limits of a place that the kernel does not hold. */
#ifndef AGENT_ENV_WATCH_H
#define AGENT_ENV_WATCH_H

#include "confine.h"

typedef unsigned long long bytes;

/* What was found when it was last measured, which costs, and what the machine's own counters said then: in between, their growth says whether
 * the place can have passed its limit. */
struct watched {
  int proc, shm, folder; /* the place's processes, its shared memory and its files; -1: not there */
  struct {
    bytes shared, machine; /* of the place, and of all the machine */
  } memory;
  struct {
    bytes measured, filled, armed; /* of the folder, of its file system, and what it takes to act again */
    int moved;
    long long next_ms, due_ms;
  } disk;
};

struct watched confine_watch_begin(const struct confinement *conf);

/* Ends what has passed a limit, and tells. */
void confine_watch(const struct confinement *conf, struct watched *watch);

#endif
