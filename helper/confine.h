/* What the parts of the confiner share. The parts: confine.c (options, view, start), guard.c (what lives outside), filter.c (the
 * system calls that a place may not make). */
#ifndef AGENT_ENV_CONFINE_H
#define AGENT_ENV_CONFINE_H

#include <sys/types.h>

#define MAX_OPERATIONS 96
#define MAX_KEPT 8
#define MAX_CGROUPS 8

struct operation {
  char kind;
  const char *source, *target, *size;
};

struct confinement {
  struct operation operations[MAX_OPERATIONS];
  int operation_count;
  const char *next_size, *directory, *hostname;
  unsigned namespaces;
  char uid_map[64], gid_map[64];  /* set: made by root, see confine.c */
  int kept[MAX_KEPT], kept_count; /* descriptors that the payload inherits */
  const char *cgroups[MAX_CGROUPS]; /* cgroup.procs files that the first process is written to */
  int cgroup_count;
  const char *events; /* where the guardian tells what it did, one JSON object a line */
  int events_fd;
  unsigned long long processes, watch_memory, file_size, watch_disk; /* 0: no limit */
  const char *disk_folder;
  const char *slirp;
  char *slirp_api;
  int slirp_ready, limited;
  pid_t slirp_pid;
  const char *bwrap;
  int proc_sys;
  char **view;    /* what bubblewrap gets, with the payload */
  char **payload;
};

int confine_main(int argc, char **argv);

/* Writes one line about what failed, with errno if set, to whoever waits for the start, and ends the process. */
void confine_fail(const char *what, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Marks every descriptor but the standard ones and the kept ones to close on exec. */
void confine_close_others(void);

/* Starts user-mode networking for the namespace of `first`, if asked for. Does not wait for it. */
void confine_start_network(struct confinement *conf, pid_t first);

/* Stays until the place ends: holds the limits that the kernel does not, and reports. `child` is ours to wait for. */
int confine_guard(struct confinement *conf, pid_t first, pid_t child);

/* Installs the filter of system calls on this process; needs no_new_privs. */
void confine_filter(void);

/* The same filter as a file that bubblewrap can read. */
int confine_filter_file(void);

#endif
