/* The guardian: the one process of a place that stands outside it. It starts and ends the place's networking, stops what goes
 * over a limit that the kernel does not hold, and says how the place ended. It can't be seen or signalled from inside. */
#define _GNU_SOURCE
#include "confine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SYS_PIDFD_OPEN 434
#define SYS_PIDFD_SEND_SIGNAL 424
#define NS_GET_USERNS 0xb701 /* linux/nsfs.h */

#define LOOK_MS 100          /* how often limits are looked at */
#define REWALK_MS 10000      /* the folder is measured again at least this often while its disk changes */
#define WALK_SHARE 20        /* measuring may use one part in so many of the time */
#define KILL_PASSES 100
#define MAX_DEPTH 200

typedef unsigned long long bytes;

static long long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void tell(const struct confinement *conf, const char *format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  int size = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (conf->events_fd > 0 && size > 0 && write(conf->events_fd, line, (size_t)size) < 0) return; /* a full disk: nobody to tell */
}

/* ---- networking ---------------------------------------------------------------------------------------------------------- */

static void run_slirp(struct confinement *conf, int network, int owner, int alive) {
  char ready[32], exit_fd[32], net_path[40], owner_path[60], api[300];
  const char *arguments[16];
  int count = 0;
  snprintf(net_path, sizeof net_path, "/proc/self/fd/%d", network);
  snprintf(owner_path, sizeof owner_path, "--userns-path=/proc/self/fd/%d", owner);
  snprintf(exit_fd, sizeof exit_fd, "--exit-fd=%d", alive);
  snprintf(ready, sizeof ready, "--ready-fd=%d", conf->slirp_ready);
  arguments[count++] = conf->slirp;
  arguments[count++] = "--configure";
  arguments[count++] = "--mtu=65520";
  arguments[count++] = "--disable-host-loopback";
  arguments[count++] = exit_fd;
  if (conf->slirp_ready >= 0) arguments[count++] = ready;
  /* An ordinary user's needs no sandbox of its own: it keeps that user's rights and no capability. */
  arguments[count++] = geteuid() ? owner_path : "--enable-sandbox";
  if (conf->slirp_api) {
    /* A socket's path must be short, so it is named from its own folder. */
    char *name = strrchr(conf->slirp_api, '/');
    if (!name) _exit(127);
    *name = 0;
    if (chdir(conf->slirp_api)) _exit(127);
    snprintf(api, sizeof api, "--api-socket=%s", name + 1);
    arguments[count++] = api;
  }
  arguments[count++] = "--netns-type=path";
  arguments[count++] = net_path;
  arguments[count++] = "tap0";
  arguments[count] = NULL;
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  conf->kept_count = 0;
  confine_close_others();
  fcntl(network, F_SETFD, 0);
  fcntl(owner, F_SETFD, 0);
  fcntl(alive, F_SETFD, 0);
  if (conf->slirp_ready >= 0) fcntl(conf->slirp_ready, F_SETFD, 0);
  execv(conf->slirp, (char **)arguments);
  _exit(127); /* the reader of the ready descriptor sees it close */
}

void confine_start_network(struct confinement *conf, pid_t first) {
  char path[64];
  int network, owner, alive[2];
  if (!conf->slirp) return;
  snprintf(path, sizeof path, "/proc/%d/ns/net", first);
  network = open(path, O_RDONLY | O_CLOEXEC);
  if (network < 0) confine_fail("can't open the place's network");
  owner = ioctl(network, NS_GET_USERNS);
  if (owner < 0) confine_fail("can't find who owns the place's network");
  /* Entering the user namespace clears the death signal, so that the end of this pipe, which nobody else holds, says it too. */
  if (pipe2(alive, O_CLOEXEC)) confine_fail("can't make pipes");
  conf->slirp_pid = fork();
  if (conf->slirp_pid < 0) confine_fail("can't fork");
  if (!conf->slirp_pid) run_slirp(conf, network, owner, alive[0]);
  close(network);
  close(owner);
  close(alive[0]);
  tell(conf, "{\"event\": \"network\", \"pid\": %d}\n", conf->slirp_pid);
}

/* ---- stopping ------------------------------------------------------------------------------------------------------------ */

/* A folder of /proc serves as a handle on its process: no number is reused between looking and signalling. */
static int kill_one(int proc, const char *number) {
  int handle = openat(proc, number, O_DIRECTORY | O_CLOEXEC), result;
  if (handle < 0) return -1;
  result = (int)syscall(SYS_PIDFD_SEND_SIGNAL, handle, SIGKILL, NULL, 0);
  close(handle);
  return result;
}

typedef int each_process(int proc, const char *number, void *context);

/* Calls for every process of the place but its first. Returns how many there were. */
static int for_each(int proc, each_process *call, void *context) {
  int copy = openat(proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), count = 0;
  DIR *listing = copy < 0 ? NULL : fdopendir(copy);
  struct dirent *entry;
  if (!listing) return 0;
  while ((entry = readdir(listing))) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || !strcmp(entry->d_name, "1")) continue;
    count += call(proc, entry->d_name, context);
  }
  closedir(listing);
  return count;
}

static int read_text(int proc, const char *number, const char *name, char *text, size_t size) {
  char path[64];
  int fd;
  ssize_t got;
  snprintf(path, sizeof path, "%s/%s", number, name);
  fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  got = read(fd, text, size - 1);
  close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  return 1;
}

/* The text after so many spaces; NULL when there are fewer. */
static const char *field_after(const char *text, int spaces) {
  while (text && spaces--) text = (text = strchr(text, ' ')) ? text + 1 : NULL;
  return text;
}

/* Only what had begun before: a command that starts while the guilty are being ended is none of them. */
static int kill_each(int proc, const char *number, void *context) {
  char text[1024];
  const char *state, *started;
  /* The program's name stands in brackets and may hold anything. */
  if (!read_text(proc, number, "stat", text, sizeof text) || !(state = strrchr(text, ')'))) return 0;
  started = field_after(state, 20);
  if (!started || state[2] == 'Z' || strtoull(started, NULL, 10) >= *(unsigned long long *)context) return 0;
  return kill_one(proc, number) == 0;
}

static void kill_all(int proc) {
  struct timespec now, pause = {.tv_nsec = 1000000};
  unsigned long long until, ticks = (unsigned long long)sysconf(_SC_CLK_TCK);
  clock_gettime(CLOCK_BOOTTIME, &now);
  until = (unsigned long long)now.tv_sec * ticks + (unsigned long long)now.tv_nsec * ticks / 1000000000;
  for (int pass = 0; pass < KILL_PASSES && for_each(proc, kill_each, &until); pass++) nanosleep(&pause, NULL);
}

/* ---- memory -------------------------------------------------------------------------------------------------------------- */

struct memory {
  bytes total, largest;
  int exact;
  char victim[24];
};

/* Cheap: resident less shared pages. Exact: the proportional share, which counts a page of a fork once. */
static int add_memory(int proc, const char *number, void *context) {
  struct memory *sum = context;
  char text[2048], *found;
  const char *sizes;
  bytes used;
  if (sum->exact) {
    if (!read_text(proc, number, "smaps_rollup", text, sizeof text) || !(found = strstr(text, "\nPss:"))) return 0;
    used = strtoull(found + 5, NULL, 10) * 1024;
  } else {
    bytes resident, shared;
    if (!read_text(proc, number, "statm", text, sizeof text) || !(sizes = field_after(text, 1))) return 0;
    resident = strtoull(sizes, &found, 10);
    shared = strtoull(found, NULL, 10);
    used = (resident > shared ? resident - shared : 0) * (bytes)sysconf(_SC_PAGESIZE);
  }
  sum->total += used;
  if (used > sum->largest) {
    sum->largest = used;
    snprintf(sum->victim, sizeof sum->victim, "%s", number);
  }
  return 1;
}

static void watch_memory(const struct confinement *conf, int proc, int shm) {
  struct memory sum = {0};
  struct statvfs files = {0};
  bytes in_files = 0;
  if (shm >= 0 && !fstatvfs(shm, &files)) in_files = (bytes)(files.f_blocks - files.f_bfree) * files.f_frsize;
  for_each(proc, add_memory, &sum);
  if (sum.total + in_files <= conf->watch_memory) return;
  sum = (struct memory){.exact = 1};
  for_each(proc, add_memory, &sum);
  if (sum.total + in_files <= conf->watch_memory || !sum.victim[0]) return;
  tell(conf, "{\"event\": \"memory\", \"used_bytes\": %llu, \"limit_bytes\": %llu}\n", sum.total + in_files, conf->watch_memory);
  kill_one(proc, sum.victim);
}

/* ---- disk ---------------------------------------------------------------------------------------------------------------- */

/* Blocks below a folder of this file system; links are not followed. */
static bytes measure(int folder, dev_t device, int depth) {
  DIR *listing = fdopendir(folder);
  struct dirent *entry;
  struct stat found;
  bytes total = 0;
  if (!listing) {
    close(folder);
    return 0;
  }
  while ((entry = readdir(listing))) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    if (fstatat(dirfd(listing), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) || found.st_dev != device) continue;
    total += (bytes)found.st_blocks * 512 / (S_ISREG(found.st_mode) && found.st_nlink > 1 ? found.st_nlink : 1);
    if (S_ISDIR(found.st_mode) && depth < MAX_DEPTH) {
      int child = openat(dirfd(listing), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      if (child >= 0) total += measure(child, device, depth + 1);
    }
  }
  closedir(listing);
  return total;
}

struct disk {
  bytes measured, filled, armed; /* of the folder, of its file system at that time, and what it takes to act again */
  long long next_ms, due_ms;
};

static void watch_disk(const struct confinement *conf, struct disk *disk, int proc, int folder) {
  struct statvfs files;
  struct stat own;
  long long start = now_ms(), spent;
  bytes filled, limit = conf->watch_disk;
  if (start < disk->next_ms || fstatvfs(folder, &files) || fstat(folder, &own)) return;
  filled = (bytes)(files.f_blocks - files.f_bfree) * files.f_frsize;
  /* Measuring costs: it is done when the growth of the file system could be ours and too much, and now and then if it moved. */
  if (filled == disk->filled) return;
  if (start < disk->due_ms && (filled < disk->filled || disk->measured + (filled - disk->filled) <= limit)) return;
  disk->measured = measure(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), own.st_dev, 0);
  disk->filled = filled;
  spent = now_ms() - start;
  disk->next_ms = start + spent * WALK_SHARE;
  disk->due_ms = start + REWALK_MS;
  if (disk->measured <= limit) {
    disk->armed = limit;
  } else if (disk->measured > disk->armed) {
    /* Told before it is done: whoever sees a command end can see why. */
    tell(conf, "{\"event\": \"disk\", \"used_bytes\": %llu, \"limit_bytes\": %llu}\n", disk->measured, limit);
    kill_all(proc);
    /* Over the limit, what cleans up may run; what grows further is stopped again. */
    disk->armed = disk->measured + limit / 16;
  }
}

/* ---- life ---------------------------------------------------------------------------------------------------------------- */

static int open_inside(pid_t first, const char *name) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/root/%s", first, name);
  return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* The place's own list of processes. Bubblewrap tells the number of its child before that has its view, and the list seen through it
 * would be this machine's: so it counts only when it is another one than ours. */
static int open_processes(pid_t first) {
  struct stat own, found, space, its_space;
  char path[64];
  int proc = open_inside(first, "proc");
  if (proc < 0) return -1;
  snprintf(path, sizeof path, "/proc/%d/ns/pid", first);
  if (stat("/proc", &own) || fstat(proc, &found) || own.st_dev == found.st_dev || stat(path, &space) ||
      fstatat(proc, "1/ns/pid", &its_space, 0) || space.st_ino != its_space.st_ino) {
    close(proc);
    return -1;
  }
  return proc;
}

static void tell_ending(const struct confinement *conf, int status) {
  if (WIFSIGNALED(status))
    tell(conf, "{\"event\": \"ended\", \"signal\": %d}\n", WTERMSIG(status));
  else
    tell(conf, "{\"event\": \"ended\", \"exit_code\": %d}\n", WEXITSTATUS(status));
}

int confine_guard(struct confinement *conf, pid_t first, pid_t child) {
  int handle = (int)syscall(SYS_PIDFD_OPEN, child, 0), status = 0, proc = -1, shm = -1, folder = -1;
  struct pollfd wait_for = {.fd = handle, .events = POLLIN};
  struct disk disk = {.armed = conf->watch_disk};
  int watching = conf->watch_memory || conf->watch_disk;
  if (conf->watch_disk) folder = open(conf->disk_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < conf->kept_count; i++) close(conf->kept[i]);
  if (conf->slirp_ready >= 0) close(conf->slirp_ready);
  if (conf->limited >= 0) close(conf->limited);
  if (chdir("/")) return 1;
  /* Without pidfd_open (kernels before 5.3) the poll below is a plain pause. */
  for (;;) {
    pid_t ended;
    poll(&wait_for, handle >= 0, watching || handle < 0 ? LOOK_MS : -1);
    while ((ended = waitpid(-1, &status, WNOHANG)) > 0 && ended != child)
      if (ended == conf->slirp_pid) tell(conf, "{\"event\": \"network_lost\", \"pid\": %d}\n", ended), conf->slirp_pid = 0;
    if (ended == child || (ended < 0 && errno == ECHILD)) break;
    if (watching && proc < 0) {
      proc = open_processes(first);
      if (proc >= 0 && conf->watch_memory) shm = open_inside(first, "dev/shm");
    }
    if (conf->watch_memory && proc >= 0) watch_memory(conf, proc, shm);
    if (conf->watch_disk && proc >= 0 && folder >= 0) watch_disk(conf, &disk, proc, folder);
  }
  tell_ending(conf, status);
  if (conf->slirp_pid && !kill(conf->slirp_pid, SIGKILL)) waitpid(conf->slirp_pid, NULL, 0);
  return 0;
}
