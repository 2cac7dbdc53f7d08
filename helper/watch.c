/* What holds the limits of memory and disk where the kernel does not: the guardian looks often, at little cost, and measures when it may be
 * too much. It counts what has no name too: memory that processes share, and files that are open but were removed. */
#define _GNU_SOURCE
#include "watch.h"
#include "ready.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SYS_PIDFD_SEND_SIGNAL 424

#define REWALK_MS 10000 /* the folder is measured again at least this often while its disk changes */
#define WALK_SHARE 20   /* measuring may use one part in so many of the time */
#define KILL_PASSES 100
#define MAX_OPEN 100    /* folders that are open at once while measuring */
#define MAX_DEPTH 5000
#define MAX_UNNAMED 256

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
  unsigned long long until, ticks = getauxval(AT_CLKTCK);
  clock_gettime(CLOCK_BOOTTIME, &now);
  until = (unsigned long long)now.tv_sec * ticks + (unsigned long long)now.tv_nsec * ticks / 1000000000;
  for (int pass = 0; pass < KILL_PASSES && for_each(proc, kill_each, &until); pass++) nanosleep(&pause, NULL);
}

/* ---- what has no name ---------------------------------------------------------------------------------------------------- */

/* Files that are open and have no name, each counted once however many processes hold it. */
struct unnamed {
  dev_t disk, shm; /* the file systems of the folder, and of the shared memory, where nothing is counted: it says itself what it holds */
  bytes on_disk, in_memory;
  int count;
  struct {
    dev_t device;
    ino_t number;
  } seen[MAX_UNNAMED];
};

static int is_new(struct unnamed *all, const struct stat *found) {
  for (int i = 0; i < all->count; i++)
    if (all->seen[i].number == found->st_ino && all->seen[i].device == found->st_dev) return 0;
  if (all->count == MAX_UNNAMED) return 0;
  all->seen[all->count].device = found->st_dev;
  all->seen[all->count++].number = found->st_ino;
  return 1;
}

static int is_memory(int folder, const char *name) {
  static const char prefix[] = "/memfd:";
  char target[sizeof prefix - 1];
  return readlinkat(folder, name, target, sizeof target) == (ssize_t)sizeof target && !memcmp(target, prefix, sizeof target);
}

/* Returns 1 for a process whose files could be seen. Nothing is opened: a file is only looked at. */
static int add_unnamed(int proc, const char *number, void *context) {
  struct unnamed *all = context;
  struct dirent *entry;
  struct stat found;
  char path[64];
  snprintf(path, sizeof path, "%s/fd", number);
  int folder = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *listing = folder < 0 ? NULL : fdopendir(folder);
  if (!listing) return 0;
  while ((entry = readdir(listing))) {
    if (entry->d_name[0] == '.' || fstatat(folder, entry->d_name, &found, 0) || !S_ISREG(found.st_mode) || found.st_nlink) continue;
    if (found.st_dev == all->shm) continue;
    if (found.st_dev != all->disk && !is_memory(folder, entry->d_name)) continue;
    if (is_new(all, &found)) *(found.st_dev == all->disk ? &all->on_disk : &all->in_memory) += (bytes)found.st_blocks * 512;
  }
  closedir(listing);
  return 1;
}

static dev_t device_of(int fd) {
  struct stat found;
  return fd < 0 || fstat(fd, &found) ? 0 : found.st_dev;
}

/* ---- memory -------------------------------------------------------------------------------------------------------------- */

struct memory {
  bytes own, shared, largest;
  struct unnamed unnamed;
  char victim[24];
};

/* Cheap: resident less shared pages. */
static int add_private(int proc, const char *number, void *context) {
  char text[256], *end;
  const char *sizes;
  bytes resident, shared;
  if (!read_text(proc, number, "statm", text, sizeof text) || !(sizes = field_after(text, 1))) return 0;
  resident = strtoull(sizes, &end, 10);
  shared = strtoull(end, NULL, 10);
  *(bytes *)context += (resident > shared ? resident - shared : 0) * getauxval(AT_PAGESZ);
  return 1;
}

static bytes kilobytes(const char *text, const char *name) {
  const char *found = strstr(text, name);
  return found ? strtoull(found + strlen(name), NULL, 10) * 1024 : 0;
}

/* Exact: the proportional share, which counts once a page that several processes have. */
static int add_exact(int proc, const char *number, void *context) {
  struct memory *sum = context;
  char text[2048];
  bytes used, shared, before = sum->unnamed.in_memory;
  add_unnamed(proc, number, &sum->unnamed);
  if (!read_text(proc, number, "smaps_rollup", text, sizeof text)) return 0;
  used = kilobytes(text, "\nPss:");
  shared = kilobytes(text, "\nPss_Shmem:");
  sum->own += used > shared ? used - shared : 0;
  sum->shared += shared;
  used += sum->unnamed.in_memory - before;
  if (used > sum->largest) {
    sum->largest = used;
    snprintf(sum->victim, sizeof sum->victim, "%s", number);
  }
  return 1;
}

static bytes larger(bytes one, bytes other) { return one > other ? one : other; }

static void watch_memory(const struct confinement *conf, struct watched *watch) {
  struct memory sum = {.unnamed = {.disk = device_of(watch->folder), .shm = device_of(watch->shm)}};
  struct statvfs files = {0};
  struct sysinfo machine = {0};
  bytes own = 0, in_files = 0, shared, of_all;
  if (watch->shm >= 0 && !fstatvfs(watch->shm, &files)) in_files = (bytes)(files.f_blocks - files.f_bfree) * files.f_frsize;
  if (sysinfo(&machine)) return;
  of_all = (bytes)machine.sharedram * machine.mem_unit;
  if (of_all < watch->memory.machine) watch->memory.machine = of_all;
  for_each(watch->proc, add_private, &own);
  if (own + larger(in_files, watch->memory.shared + of_all - watch->memory.machine) <= conf->watch_memory) return;
  for_each(watch->proc, add_exact, &sum);
  /* What is mapped and what is in files may be the same, so the larger counts, and nobody is ended for what he does not hold. */
  shared = larger(sum.shared, in_files + sum.unnamed.in_memory);
  watch->memory.shared = shared;
  watch->memory.machine = of_all;
  if (sum.own + shared <= conf->watch_memory || !sum.victim[0]) return;
  confine_tell(conf, "{\"event\": \"memory\", \"used_bytes\": %llu, \"limit_bytes\": %llu}\n", sum.own + shared, conf->watch_memory);
  confine_tell_first(conf, TELL_MEMORY);
  kill_one(watch->proc, sum.victim);
}

/* ---- disk ---------------------------------------------------------------------------------------------------------------- */

static bytes measure(int folder, dev_t device, int depth, int *above);

/* Of a folder that lies so deep that the one above is closed meanwhile, and found again from below. `listing` is replaced, or NULL. */
static bytes measure_below(DIR **listing, int child, dev_t device, int depth) {
  struct stat before, after;
  long position = telldir(*listing);
  int above = -1, known = !fstat(dirfd(*listing), &before);
  bytes total;
  closedir(*listing);
  total = measure(child, device, depth, &above);
  known = known && above >= 0 && !fstat(above, &after) && after.st_ino == before.st_ino && after.st_dev == before.st_dev;
  *listing = known ? fdopendir(above) : NULL;
  if (*listing)
    seekdir(*listing, position);
  else if (above >= 0)
    close(above);
  return total;
}

/* Blocks below a folder of this file system; links are not followed. The folder is closed; `above`, if wanted, becomes the one that holds it. */
static bytes measure(int folder, dev_t device, int depth, int *above) {
  DIR *listing = fdopendir(folder);
  struct dirent *entry;
  struct stat found;
  bytes total = 0;
  if (!listing) {
    close(folder);
    return 0;
  }
  while (listing && (entry = readdir(listing))) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    if (fstatat(dirfd(listing), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) || found.st_dev != device) continue;
    total += (bytes)found.st_blocks * 512 / (S_ISREG(found.st_mode) && found.st_nlink > 1 ? found.st_nlink : 1);
    if (!S_ISDIR(found.st_mode) || depth >= MAX_DEPTH) continue;
    int child = openat(dirfd(listing), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (child >= 0) total += depth < MAX_OPEN ? measure(child, device, depth + 1, NULL) : measure_below(&listing, child, device, depth + 1);
  }
  if (!listing) return total;
  if (above) *above = openat(dirfd(listing), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  closedir(listing);
  return total;
}

/* Measures as one who may read every folder of the place, also those that its owner took his own permission for: whoever made the place's
 * user namespace may, inside it. Returns 0 when that can't be done. */
static int measure_inside(const struct watched *watch, dev_t device, bytes *total) {
  int ends[2], status, done;
  pid_t child;
  if (pipe2(ends, O_CLOEXEC)) return 0;
  if (!(child = fork())) {
    int users = openat(watch->proc, "1/ns/user", O_RDONLY | O_CLOEXEC);
    if (users < 0 || setns(users, CLONE_NEWUSER)) _exit(1);
    *total = measure(openat(watch->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), device, 0, NULL);
    _exit(write(ends[1], total, sizeof *total) != (ssize_t)sizeof *total);
  }
  close(ends[1]);
  done = child > 0 && read(ends[0], total, sizeof *total) == (ssize_t)sizeof *total;
  close(ends[0]);
  if (child > 0) waitpid(child, &status, 0);
  return done;
}

static bytes measure_all(const struct watched *watch) {
  struct unnamed unnamed = {.disk = device_of(watch->folder)};
  bytes total = 0;
  if (!geteuid() || !measure_inside(watch, unnamed.disk, &total))
    total = measure(openat(watch->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), unnamed.disk, 0, NULL);
  for_each(watch->proc, add_unnamed, &unnamed);
  return total + unnamed.on_disk;
}

static void watch_disk(const struct confinement *conf, struct watched *watch) {
  struct statvfs files;
  long long start = confine_now_ms(), spent;
  bytes filled, limit = conf->watch_disk;
  if (fstatvfs(watch->folder, &files)) return;
  filled = (bytes)(files.f_blocks - files.f_bfree) * files.f_frsize;
  watch->disk.moved |= filled != watch->disk.filled;
  if (filled < watch->disk.filled) watch->disk.filled = filled; /* what others free hides nothing that grows */
  if (!watch->disk.moved || start < watch->disk.next_ms) return;
  /* Measuring costs: it is done when the growth of the file system could be ours and too much, and now and then if it moved. */
  if (start < watch->disk.due_ms && watch->disk.measured + (filled - watch->disk.filled) <= limit) return;
  watch->disk.measured = measure_all(watch);
  watch->disk.filled = filled;
  watch->disk.moved = 0;
  spent = confine_now_ms() - start;
  watch->disk.next_ms = start + spent * WALK_SHARE;
  watch->disk.due_ms = start + REWALK_MS;
  if (watch->disk.measured <= limit) {
    watch->disk.armed = limit;
  } else if (watch->disk.measured > watch->disk.armed) {
    /* Told before it is done: whoever sees a command end can see why. */
    confine_tell(conf, "{\"event\": \"disk\", \"used_bytes\": %llu, \"limit_bytes\": %llu}\n", watch->disk.measured, limit);
    confine_tell_first(conf, TELL_DISK);
    kill_all(watch->proc);
    /* Over the limit, what cleans up may run; what grows further is stopped again. */
    watch->disk.armed = watch->disk.measured + limit / 16;
  }
}

struct watched confine_watch_begin(const struct confinement *conf) {
  struct watched watch = {.proc = -1, .shm = -1, .folder = -1, .disk = {.armed = conf->watch_disk}};
  struct sysinfo machine = {0};
  if (conf->watch_disk) watch.folder = open(conf->disk_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (!sysinfo(&machine)) watch.memory.machine = (bytes)machine.sharedram * machine.mem_unit;
  return watch;
}

void confine_watch(const struct confinement *conf, struct watched *watch) {
  if (conf->watch_memory) watch_memory(conf, watch);
  if (conf->watch_disk && watch->folder >= 0) watch_disk(conf, watch);
}
