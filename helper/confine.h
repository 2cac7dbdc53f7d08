/* What the parts of the confiner share. The parts: confine.c (options, view, start), overlay.c (a root that is stacked), guard.c (what lives outside), watch.c
 * (what goes over a limit), filter.c (the system calls that a place may not make). */
#ifndef AGENT_ENV_CONFINE_H
#define AGENT_ENV_CONFINE_H

#include <sys/types.h>

#define MAX_OPERATIONS 96
#define MAX_KEPT 32
#define MAX_CGROUPS 8

/* mount_setattr(2) is younger than some C libraries. */
struct mount_attributes {
  unsigned long long set, clear, propagation, userns;
};
#define ATTR_RDONLY 0x1ULL
#define ATTR_NOSUID 0x2ULL
#define ATTR_NODEV 0x4ULL
#define SYS_MOUNT_SETATTR 442

struct operation {
  char kind;
  const char *source, *target, *size;
  mode_t mode;
};

struct confinement {
  struct operation operations[MAX_OPERATIONS];
  int operation_count;
  const char *next_size, *directory, *hostname;
  mode_t next_mode;
  unsigned namespaces;
  char uid_map[64], gid_map[64];  /* set: made by root, see confine.c */
  int kept[MAX_KEPT], kept_count; /* descriptors that the payload inherits */
  const char *cgroups[MAX_CGROUPS]; /* cgroup.procs files that the first process is written to */
  int cgroup_count;
  const char *events; /* where the guardian tells what it did, one JSON object a line */
  int events_fd;
  unsigned long long processes, watch_memory, file_size, watch_disk; /* 0: no limit */
  const char *disk_folder;
  const char *lower, *upper; /* the root is an overlay: of a tree, and of a folder that holds `top` and `work` */
  int many, read_only, shift; /* many users; the root can't be written; who owns what in the tree, as a user namespace, or -1 */
  const char *slirp;
  char *slirp_api;
  int told;         /* the socket of the first process: see ready.c */
  pid_t slirp_pid;
  int network, owner; /* namespaces: the network that it serves, and the users whose that is */
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

/* Tells the kernel who is who in the user namespace of a process. */
void confine_map_ids(pid_t child);

/* A descriptor of a user namespace that has the place's numbers. */
int confine_shift_of_ids(void);

/* Makes the root of an image's tree and a folder of the place's own. */
void confine_mount_overlay(const struct confinement *conf, const char *outside, const char *root);

/* Puts the place into its control groups. */
void confine_join_groups(const struct confinement *conf, pid_t first);

/* Stays until the place ends: holds the limits that the kernel does not, and reports. `child` is ours to wait for. */
int confine_guard(struct confinement *conf, pid_t first, pid_t child);

/* Writes one event, a line, to whoever reads what the guardian did. */
void confine_tell(const struct confinement *conf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Tells the first process, by one of the words of ready.h. */
void confine_tell_first(const struct confinement *conf, char word);

/* Milliseconds that only grow. */
long long confine_now_ms(void);

/* Installs the filter of system calls on this process; needs no_new_privs. */
void confine_filter(void);

/* The same filter as a file that bubblewrap can read. */
int confine_filter_file(void);

#endif
