/* helper confine: makes a confined machine and runs a payload as its PID 1.
 *
 * Takes the few bubblewrap options that a machine place needs, spelled as bubblewrap spells them, so that one argument vector
 * serves both. With --bwrap the namespaces are made by bubblewrap itself; everything else here stays the same.
 *
 * Three processes: the caller's child forks at once and ends (nobody waits for the sandbox), its child becomes the *guardian*
 * (outside, parent of the place, watches what the kernel can't limit, ends with the place), and the guardian's child becomes the
 * place's PID 1. The place dies with its guardian; neither dies with the caller.
 *
 * Two ways in. As real root (--uid-map given): all mounts are made by root and belong to the outer user namespace, then the
 * process moves into a user namespace of its own, mapped to private unprivileged ids; so no capability inside can ever change a
 * mount. As an ordinary user: user and mount namespace together, one id.
 */
#define _GNU_SOURCE
#include "confine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif

#define SYS_CLOSE_RANGE 436
#define CLOSE_RANGE_AS_CLOEXEC 4u

static int report_fd = -1; /* "ok PID" or "error TEXT", one line, then it is closed */

void confine_fail(const char *what, ...) {
  int code = errno;
  char text[1200];
  va_list arguments;
  int used = snprintf(text, sizeof text, "error ");
  va_start(arguments, what);
  used += vsnprintf(text + used, sizeof text - (size_t)used - 100, what, arguments);
  va_end(arguments);
  if (used > (int)sizeof text - 100) used = (int)sizeof text - 100;
  if (code) used += snprintf(text + used, sizeof text - (size_t)used, ": %s (%d)", strerror(code), code);
  text[used++] = '\n';
  if (write(report_fd >= 0 ? report_fd : 2, text, (size_t)used) < 0) _exit(3);
  _exit(2);
}
#define fail confine_fail

/* ---- options ------------------------------------------------------------------------------------------------------------- */

struct option {
  const char *name;
  char kind;
  int values;
  unsigned flag;
};

/* Kinds in capitals make the view and are passed on to bubblewrap unread; the others are ours. */
static const struct option OPTIONS[] = {
    {"--ro-bind", 'R', 2, 0},          {"--bind", 'B', 2, 0},
    {"--dev-bind", 'V', 2, 0},         {"--dev", 'D', 1, 0},
    {"--proc", 'P', 1, 0},             {"--tmpfs", 'T', 1, 0},
    {"--size", 'Z', 1, 0},             {"--symlink", 'L', 2, 0},
    {"--dir", 'M', 1, 0},              {"--file", 'F', 2, 0},
    {"--perms", 'O', 1, 0},
    {"--chdir", 'C', 1, 0},
    {"--hostname", 'H', 1, 0},         {"--unshare-user", 'N', 0, CLONE_NEWUSER},
    {"--unshare-pid", 'N', 0, CLONE_NEWPID}, {"--unshare-ipc", 'N', 0, CLONE_NEWIPC},
    {"--unshare-uts", 'N', 0, CLONE_NEWUTS}, {"--unshare-net", 'N', 0, CLONE_NEWNET},
    {"--unshare-cgroup-try", 'N', 0, CLONE_NEWCGROUP},
    {"--uid", 'I', 1, 0},              {"--gid", 'I', 1, 0},
    {"--as-pid-1", 'I', 0, 0},
    {"--uid-map", 'u', 3, 0},          {"--gid-map", 'g', 3, 0},
    {"--report-fd", 'r', 1, 0},        {"--keep-fd", 'k', 1, 0},
    {"--cgroup", 'c', 1, 0},           {"--events", 'e', 1, 0},
    {"--processes", 'p', 1, 0},        {"--watch-memory", 'm', 1, 0},
    {"--file-size", 'f', 1, 0},        {"--watch-disk", 'd', 2, 0},
    {"--slirp", 's', 1, 0},            {"--first-fd", 'y', 1, 0},
    {"--slirp-api", 'a', 1, 0},        {"--bwrap", 'b', 1, 0},
    {"--overlay", 'o', 2, 0},
    {"--many-users", 'q', 0, 0},       {"--read-only", 'w', 0, 0},
};

static struct confinement conf;

static const struct option *option_named(const char *name) {
  for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++)
    if (!strcmp(OPTIONS[i].name, name)) return &OPTIONS[i];
  errno = 0;
  fail("unknown option %s", name);
  return NULL;
}

static void keep_fd(int fd) {
  if (conf.kept_count == MAX_KEPT) errno = 0, fail("too many kept descriptors");
  conf.kept[conf.kept_count++] = fd;
}

static void add_mount(char kind, const char *source, const char *target) {
  struct operation *made;
  if (conf.operation_count == MAX_OPERATIONS) errno = 0, fail("more than %d mounts", MAX_OPERATIONS);
  made = &conf.operations[conf.operation_count++];
  *made = (struct operation){.kind = kind, .source = source, .target = target, .size = conf.next_size, .mode = conf.next_mode};
  conf.next_size = NULL;
  conf.next_mode = 0;
  if (strchr("RBV", kind)) {
    /* Links of the source are resolved in the outer view, before there is another. */
    made->source = realpath(source, NULL);
    if (!made->source) fail("can't find %s to show it at %s", source, target);
  }
}

static void take(const struct option *option, char **value) {
  switch (option->kind) {
    case 'R': case 'B': case 'V': case 'L': case 'F': add_mount(option->kind, value[0], value[1]); break;
    case 'D': case 'P': case 'T': case 'M': add_mount(option->kind, NULL, value[0]); break;
    case 'Z': conf.next_size = value[0]; break;
    case 'O': conf.next_mode = (mode_t)strtoul(value[0], NULL, 8); break;
    case 'C': conf.directory = value[0]; break;
    case 'H': conf.hostname = value[0]; break;
    case 'N': conf.namespaces |= option->flag; break;
    case 'u': snprintf(conf.uid_map, sizeof conf.uid_map, "%s %s %s", value[0], value[1], value[2]); break;
    case 'g': snprintf(conf.gid_map, sizeof conf.gid_map, "%s %s %s", value[0], value[1], value[2]); break;
    case 'r': report_fd = atoi(value[0]); fcntl(report_fd, F_SETFD, FD_CLOEXEC); break;
    case 'k': keep_fd(atoi(value[0])); break;
    case 'c':
      if (conf.cgroup_count == MAX_CGROUPS) errno = 0, fail("more than %d control groups", MAX_CGROUPS);
      conf.cgroups[conf.cgroup_count++] = value[0];
      break;
    case 'e': conf.events = value[0]; break;
    case 'p': conf.processes = strtoull(value[0], NULL, 10); break;
    case 'm': conf.watch_memory = strtoull(value[0], NULL, 10); break;
    case 'f': conf.file_size = strtoull(value[0], NULL, 10); break;
    case 'd': conf.watch_disk = strtoull(value[0], NULL, 10); conf.disk_folder = value[1]; break;
    case 's': conf.slirp = value[0]; break;
    case 'y': conf.told = atoi(value[0]); fcntl(conf.told, F_SETFD, FD_CLOEXEC); break;
    case 'a': conf.slirp_api = value[0]; break;
    case 'b': conf.bwrap = value[0]; break;
    case 'o':
      conf.lower = realpath(value[0], NULL);
      conf.upper = realpath(value[1], NULL);
      if (!conf.lower || !conf.upper) fail("can't find %s or %s", value[0], value[1]);
      break;
    case 'q': conf.many = 1; break;
    case 'w': conf.read_only = 1; break;
  }
}

static void parse(int argc, char **argv) {
  int at = 1;
  conf.told = conf.shift = -1;
  while (at < argc && strcmp(argv[at], "--")) {
    const struct option *option = option_named(argv[at]);
    if (at + option->values >= argc) errno = 0, fail("%s lacks a value", argv[at]);
    /* With bubblewrap, ours come first and the rest is its own. */
    if (conf.bwrap && option->kind >= 'A' && option->kind <= 'Z') {
      if (!conf.view) conf.view = &argv[at];
      if (option->kind == 'F') keep_fd(atoi(argv[at + 1]));
    } else {
      take(option, &argv[at + 1]);
    }
    at += 1 + option->values;
  }
  if (at + 1 >= argc) errno = 0, fail("nothing to run: expected -- PROGRAM [ARGUMENT...]");
  conf.payload = &argv[at + 1];
}

/* ---- the view ------------------------------------------------------------------------------------------------------------ */

#define NEW_ROOT "/newroot"
#define OLD_ROOT "/oldroot"

static const char *path_in(const char *root, const char *path, char *buffer, size_t size) {
  if (snprintf(buffer, size, "%s%s", root, path) >= (int)size) errno = ENAMETOOLONG, fail("%s", path);
  return buffer;
}

static void make_parents(char *path) {
  for (char *slash = strchr(path + strlen(NEW_ROOT) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    if (mkdir(path, 0755) && errno != EEXIST && errno != EROFS) fail("can't make %s", path + strlen(NEW_ROOT));
    *slash = '/';
  }
}

static void make_folder(char *path) {
  make_parents(path);
  if (mkdir(path, 0755) && errno != EEXIST) fail("can't make %s", path + strlen(NEW_ROOT));
}

static void make_file(char *path) {
  struct stat found;
  int fd;
  if (!lstat(path, &found)) return;
  make_parents(path);
  fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) fail("can't make %s", path + strlen(NEW_ROOT));
  close(fd);
}

/* Who the place's first user is where the view is made: a number of the place's own when root makes it, else us. */
static unsigned first_of(const char *map, unsigned otherwise) {
  const char *outside = strchr(map, ' ');
  return outside ? (unsigned)strtoul(outside, NULL, 10) : otherwise;
}

static uid_t first_uid(void) { return first_of(conf.uid_map, geteuid()); }
static gid_t first_gid(void) { return first_of(conf.gid_map, getegid()); }

/* A file of its own in the view, with what is read from a descriptor. */
static void write_out(int from, char *path, mode_t mode) {
  char piece[4096];
  ssize_t got;
  int fd;
  make_parents(path);
  fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) fail("can't make %s", path + strlen(NEW_ROOT));
  while ((got = read(from, piece, sizeof piece)) > 0)
    if (write(fd, piece, (size_t)got) != got) fail("can't write %s", path + strlen(NEW_ROOT));
  if (got < 0 || fchmod(fd, mode ? mode : 0644) || fchown(fd, first_uid(), first_gid())) fail("can't finish %s", path + strlen(NEW_ROOT));
  close(fd);
  close(from);
}

/* Sets flags on a mount and all below it. Kernels before 5.12 can only do the top one, keeping the flags it has. */
static void restrict_mount(const char *target, unsigned long long attributes) {
  struct mount_attributes wanted = {.set = attributes};
  struct statvfs had;
  unsigned long flags = MS_BIND | MS_REMOUNT | MS_SILENT;
  if (!syscall(SYS_MOUNT_SETATTR, AT_FDCWD, target, 0x8000 /* AT_RECURSIVE */, &wanted, sizeof wanted)) return;
  if (statvfs(target, &had)) fail("can't look at %s", target);
  flags |= had.f_flag & (ST_RDONLY | ST_NOSUID | ST_NODEV | ST_NOEXEC | ST_NOATIME | ST_NODIRATIME | ST_RELATIME);
  if (attributes & ATTR_RDONLY) flags |= MS_RDONLY;
  if (attributes & ATTR_NOSUID) flags |= MS_NOSUID;
  if (attributes & ATTR_NODEV) flags |= MS_NODEV;
  if (mount("none", target, NULL, flags, NULL)) fail("can't protect %s", target);
}

static void show(const char *source, char *target, unsigned long long attributes) {
  struct stat found;
  if (stat(source, &found)) fail("can't find %s", source);
  if (S_ISDIR(found.st_mode)) {
    if (strcmp(target, NEW_ROOT "/")) make_folder(target);
  } else {
    make_file(target);
  }
  if (mount(source, target, NULL, MS_BIND | MS_REC | MS_SILENT, NULL)) fail("can't show %s at %s", source, target);
  restrict_mount(target, attributes);
}

static void mount_tmpfs(const char *target, const char *mode, const char *size) {
  char data[160];
  snprintf(data, sizeof data, "mode=%s,uid=%u,gid=%u%s%s", mode, first_uid(), first_gid(), size ? ",size=" : "", size ? size : "");
  if (mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV | MS_SILENT, data)) fail("can't mount a tmpfs at %s", target);
}

static void mount_dev(char *target, const char *shm_size) {
  static const char *const NODES[] = {"null", "zero", "full", "random", "urandom", "tty"};
  static const char *const LINKS[][2] = {{"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"},
                                         {"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"}};
  char source[256], path[4200];
  make_folder(target);
  mount_tmpfs(target, "755", "65536");
  for (size_t i = 0; i < sizeof NODES / sizeof *NODES; i++) {
    snprintf(source, sizeof source, OLD_ROOT "/dev/%s", NODES[i]);
    snprintf(path, sizeof path, "%s/%s", target, NODES[i]);
    make_file(path);
    if (mount(source, path, NULL, MS_BIND | MS_SILENT, NULL)) fail("can't show /dev/%s", NODES[i]);
    restrict_mount(path, ATTR_NOSUID);
  }
  for (size_t i = 0; i < sizeof LINKS / sizeof *LINKS; i++) {
    snprintf(path, sizeof path, "%s/%s", target, LINKS[i][1]);
    if (symlink(LINKS[i][0], path)) fail("can't make %s", path);
  }
  snprintf(path, sizeof path, "%s/shm", target);
  make_folder(path);
  mount_tmpfs(path, "1777", shm_size);
  snprintf(path, sizeof path, "%s/pts", target);
  make_folder(path);
  if (mount("devpts", path, "devpts", MS_NOSUID | MS_NOEXEC | MS_SILENT, "newinstance,ptmxmode=0666,mode=620"))
    fail("can't mount terminals");
}

static void mount_proc(char *target) {
  static const char *const READ_ONLY[] = {"sys", "sysrq-trigger", "irq", "bus", "fs"};
  static const char *const HIDDEN[] = {"kcore", "keys", "key-users", "kmsg", "kallsyms", "timer_list", "sched_debug", "latency_stats"};
  char path[4200];
  make_folder(target);
  if (mount("proc", target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_SILENT, NULL))
    fail("can't mount /proc for a process namespace of its own");
  snprintf(path, sizeof path, "%s/sys", target);
  conf.proc_sys = open(path, O_PATH | O_CLOEXEC | O_DIRECTORY);
  for (size_t i = 0; i < sizeof READ_ONLY / sizeof *READ_ONLY; i++) {
    snprintf(path, sizeof path, "%s/%s", target, READ_ONLY[i]);
    if (access(path, F_OK)) continue;
    if (mount(path, path, NULL, MS_BIND | MS_REC | MS_SILENT, NULL)) fail("can't protect %s", path);
    restrict_mount(path, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV);
  }
  /* What PID 1 is can be read; how the kernel treats it is not for its children to set, although they share its user id. */
  snprintf(path, sizeof path, "%s/1", target);
  if (mount(path, path, NULL, MS_BIND | MS_SILENT, NULL)) fail("can't protect %s", path);
  restrict_mount(path, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV);
  for (size_t i = 0; i < sizeof HIDDEN / sizeof *HIDDEN; i++) {
    snprintf(path, sizeof path, "%s/%s", target, HIDDEN[i]);
    if (access(path, F_OK)) continue;
    if (mount(OLD_ROOT "/dev/null", path, NULL, MS_BIND | MS_SILENT, NULL)) fail("can't hide %s", path);
  }
}

static void perform(const struct operation *made) {
  char source[4200], target[4200];
  path_in(NEW_ROOT, made->target, target, sizeof target);
  switch (made->kind) {
    case 'R': show(path_in(OLD_ROOT, made->source, source, sizeof source), target, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV); break;
    case 'B': show(path_in(OLD_ROOT, made->source, source, sizeof source), target, ATTR_NOSUID | ATTR_NODEV); break;
    case 'V': show(path_in(OLD_ROOT, made->source, source, sizeof source), target, ATTR_NOSUID); break;
    case 'D': mount_dev(target, made->size); break;
    case 'P': mount_proc(target); break;
    case 'T': make_folder(target); mount_tmpfs(target, "755", made->size); break;
    case 'M': make_folder(target); break;
    case 'F': write_out(atoi(made->source), target, made->mode); break;
    case 'L':
      make_parents(target);
      if (symlink(made->source, target) && errno != EEXIST) fail("can't make the link %s", made->target);
      break;
  }
}

static void change_view(void) {
  /* Built on a scratch tmpfs with the old root below it, so that no source is hidden by where we build. */
  if (mount(NULL, "/", NULL, MS_SLAVE | MS_REC | MS_SILENT, NULL)) fail("can't leave the outer mount namespace");
  if (mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV | MS_SILENT, "mode=755")) fail("can't mount a scratch tmpfs");
  if (mkdir("/tmp" NEW_ROOT, 0755) || mkdir("/tmp" OLD_ROOT, 0755)) fail("can't prepare the root");
  if (syscall(SYS_pivot_root, "/tmp", "/tmp" OLD_ROOT) || chdir("/")) fail("can't move to the scratch root");
  if (conf.lower) confine_mount_overlay(&conf, OLD_ROOT, NEW_ROOT);
  for (int i = 0; i < conf.operation_count; i++) perform(&conf.operations[i]);
  if (conf.read_only && mount("none", NEW_ROOT, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_SILENT, NULL))
    fail("can't close the root to writing");
  /* The scratch root and the outer view below it go together: letting go waits for the kernel's readers, so it is done once. */
  if (chdir(NEW_ROOT) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/")) fail("can't enter the root");
}

/* ---- inside, as the process that becomes PID 1 --------------------------------------------------------------------------- */

static void limit(int which, unsigned long long most) {
  struct rlimit wanted = {.rlim_cur = most, .rlim_max = most};
  if (prlimit(0, which, &wanted, NULL)) fail("can't set limit %d to %llu", which, most);
}

static void forbid_more_namespaces(void) {
  /* Own limit of own user namespace: nobody inside has the capability to raise it again. Absent on kernels that lack it. */
  int fd;
  if (conf.proc_sys < 0) return;
  fd = openat(conf.proc_sys, "user/max_user_namespaces", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (write(fd, "0", 1) != 1) fail("can't forbid further user namespaces");
  close(fd);
}

#define BIT(capability) (1ULL << (capability))
/* What root needs among the users of one image, over its own namespaces alone: as an engine's containers have it, less what reaches out. */
#define KEPT_CAPABILITIES                                                                                                     \
  (BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) | BIT(CAP_FSETID) | BIT(CAP_KILL) | BIT(CAP_SETGID) | BIT(CAP_SETUID) | \
   BIT(CAP_SETPCAP) | BIT(CAP_NET_BIND_SERVICE) | BIT(CAP_SYS_CHROOT) | BIT(CAP_AUDIT_WRITE))

static void drop_capabilities(void) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct none[2] = {{0}};
  for (int capability = 0; capability <= 63; capability++) {
    if (conf.many && KEPT_CAPABILITIES >> capability & 1) continue;
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) && errno != EINVAL) fail("can't drop capability %d", capability);
  }
  if (conf.many) {
    none[0].effective = none[0].permitted = (unsigned)KEPT_CAPABILITIES;
    if (syscall(SYS_capset, &header, none)) fail("can't drop capabilities");
    return;
  }
  if (prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED |
            SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED, 0, 0, 0))
    fail("can't lock the security bits");
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) && errno != EINVAL) fail("can't clear ambient capabilities");
  if (syscall(SYS_capset, &header, none)) fail("can't drop capabilities");
}

static void raise_loopback(void) {
  struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &loopback)) fail("can't raise the loopback interface");
  close(fd);
  /* Nobody else's ports are in a network of one's own. Absent on kernels that lack it. */
  fd = conf.proc_sys < 0 ? -1 : openat(conf.proc_sys, "net/ipv4/ip_unprivileged_port_start", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (write(fd, "0", 1) != 1) fail("can't open low ports");
  close(fd);
}

static void become_first(int go, int mapped) {
  char byte = 0;
  int by_root = conf.uid_map[0] != 0;
  if (!by_root && read(go, &byte, 1) != 1) _exit(2); /* the guardian wrote why */
  change_view();
  if (conf.hostname && sethostname(conf.hostname, strlen(conf.hostname))) fail("can't set the host name");
  if (conf.namespaces & CLONE_NEWNET) raise_loopback();
  if (by_root) {
    if (unshare(CLONE_NEWUSER)) fail("can't make a user namespace");
    if (write(mapped, "m", 1) != 1 || read(go, &byte, 1) != 1) _exit(2);
    if (syscall(SYS_setgroups, (size_t)0, NULL)) fail("can't leave the groups");
  }
  if (syscall(SYS_setresgid, 0, 0, 0) || syscall(SYS_setresuid, 0, 0, 0)) fail("can't become the place's user");
  forbid_more_namespaces();
  limit(RLIMIT_CORE, 0);
  if (conf.processes) limit(RLIMIT_NPROC, conf.processes);
  if (conf.file_size) limit(RLIMIT_FSIZE, conf.file_size);
  drop_capabilities();
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("can't forbid new privileges");
  confine_filter();
  umask(022);
  if (chdir(conf.directory ? conf.directory : "/")) fail("can't enter %s", conf.directory);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)) fail("can't bind the place to its guardian");
  confine_close_others();
  execv(conf.payload[0], conf.payload);
  fail("can't start %s in the place", conf.payload[0]);
}

/* Everything but the standard streams and what was asked to be kept is closed by the next exec. */
void confine_close_others(void) {
  if (syscall(SYS_CLOSE_RANGE, 3u, ~0u, CLOSE_RANGE_AS_CLOEXEC))
    for (int fd = 3; fd < 1024; fd++) fcntl(fd, F_SETFD, FD_CLOEXEC);
  for (int i = 0; i < conf.kept_count; i++)
    if (fcntl(conf.kept[i], F_SETFD, 0)) fail("descriptor %d can't be kept", conf.kept[i]);
}

/* ---- outside ------------------------------------------------------------------------------------------------------------- */

static void write_file(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) fail("can't write %s to %s", text, path);
  close(fd);
}

void confine_map_ids(pid_t child) {
  char path[64], map[64];
  if (conf.uid_map[0]) {
    snprintf(path, sizeof path, "/proc/%d/uid_map", child);
    write_file(path, conf.uid_map);
    snprintf(path, sizeof path, "/proc/%d/gid_map", child);
    write_file(path, conf.gid_map);
    return;
  }
  snprintf(path, sizeof path, "/proc/%d/setgroups", child);
  write_file(path, "deny");
  snprintf(path, sizeof path, "/proc/%d/uid_map", child);
  snprintf(map, sizeof map, "0 %u 1", (unsigned)geteuid());
  write_file(path, map);
  snprintf(path, sizeof path, "/proc/%d/gid_map", child);
  snprintf(map, sizeof map, "0 %u 1", (unsigned)getegid());
  write_file(path, map);
}

/* The child's own setup pipe ends when its exec succeeds; until then whatever it writes is an error line. */
static pid_t start_confined(void) {
  int go[2], mapped[2], done[2];
  char text[1300];
  ssize_t got;
  pid_t child;
  unsigned flags = conf.namespaces & ~(unsigned)(conf.uid_map[0] ? CLONE_NEWUSER : 0);
  if (pipe2(go, O_CLOEXEC) || pipe2(mapped, O_CLOEXEC) || pipe2(done, O_CLOEXEC)) fail("can't make pipes");
  child = (pid_t)syscall(SYS_clone, (unsigned long)(flags | CLONE_NEWNS | SIGCHLD), NULL, NULL, NULL, 0);
  if (child < 0) fail("can't make namespaces");
  if (!child) {
    report_fd = done[1];
    close(go[1]);
    close(mapped[0]);
    become_first(go[0], mapped[1]);
  }
  close(done[1]);
  close(mapped[1]);
  if (!conf.uid_map[0] || read(mapped[0], text, 1) == 1) {
    confine_map_ids(child);
    if (write(go[1], "g", 1) != 1) fail("the place's first process is gone");
  }
  got = read(done[0], text, sizeof text);
  close(done[0]);
  close(mapped[0]);
  close(go[0]);
  close(go[1]);
  if (got > 0) {
    if (write(report_fd, text, (size_t)got) != got) _exit(3);
    _exit(2);
  }
  return child;
}

/* Bubblewrap tells its child's number as JSON; the number is the one thing wanted from it. */
static pid_t start_bubblewrapped(pid_t *wrapper) {
  int info[2], filter = confine_filter_file();
  char text[512], number[2][12], *found;
  size_t used = 0;
  ssize_t got;
  if (pipe2(info, O_CLOEXEC)) fail("can't make pipes");
  *wrapper = fork();
  if (*wrapper < 0) fail("can't fork");
  if (!*wrapper) {
    const char *arguments[MAX_OPERATIONS * 3 + 32];
    int count = 0;
    snprintf(number[0], sizeof number[0], "%d", info[1]);
    snprintf(number[1], sizeof number[1], "%d", filter);
    arguments[count++] = conf.bwrap;
    arguments[count++] = "--die-with-parent";
    arguments[count++] = "--info-fd";
    arguments[count++] = number[0];
    arguments[count++] = "--seccomp";
    arguments[count++] = number[1];
    arguments[count++] = "--cap-drop"; /* whoever is user 0 of some namespace would else have them all in the place */
    arguments[count++] = "ALL";
    for (char **part = conf.view; part && *part && count < MAX_OPERATIONS * 3 + 30; part++) arguments[count++] = *part;
    arguments[count] = NULL;
    limit(RLIMIT_CORE, 0);
    if (conf.file_size) limit(RLIMIT_FSIZE, conf.file_size);
    umask(022);
    keep_fd(info[1]);
    keep_fd(filter);
    confine_close_others();
    execv(conf.bwrap, (char **)arguments);
    fail("can't start %s", conf.bwrap);
  }
  close(info[1]);
  close(filter);
  while (used < sizeof text - 1 && (got = read(info[0], text + used, sizeof text - 1 - used)) > 0) used += (size_t)got;
  close(info[0]);
  text[used] = 0;
  found = strstr(text, "\"child-pid\":");
  errno = 0;
  if (!found) fail("%s did not start; the sandbox's log says why", conf.bwrap);
  return (pid_t)atoi(found + strlen("\"child-pid\":"));
}

/* Bubblewrap itself would trip over this limit, which in the outer namespace counts the user's own processes. */
static void limit_processes(pid_t first) {
  struct rlimit wanted = {.rlim_cur = conf.processes, .rlim_max = conf.processes};
  if (prlimit(first, RLIMIT_NPROC, &wanted, NULL)) fail("can't limit the number of processes");
}

int confine_main(int argc, char **argv) {
  pid_t first, wrapper = 0;
  char line[32];
  int size, told;
  signal(SIGPIPE, SIG_IGN);
  conf.proc_sys = -1;
  parse(argc, argv);
  if (report_fd < 0) errno = 0, fail("--report-fd is missing");
  switch (fork()) {
    case -1: fail("can't fork");
    case 0: break;
    default: _exit(0);
  }
  setsid();
  prctl(PR_SET_NAME, "agentenv-guard", 0, 0, 0);
  if (conf.events) {
    conf.events_fd = open(conf.events, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (conf.events_fd < 0) fail("can't open %s", conf.events);
  }
  if (conf.lower && conf.uid_map[0]) conf.shift = confine_shift_of_ids();
  first = conf.bwrap ? start_bubblewrapped(&wrapper) : start_confined();
  if (conf.bwrap && conf.processes) limit_processes(first);
  size = snprintf(line, sizeof line, "ok %d %d\n", first, getpid());
  told = write(report_fd, line, (size_t)size) == size;
  close(report_fd);
  if (told) confine_join_groups(&conf, first);
  else kill(first, SIGKILL); /* whoever asked for the place has died */
  return confine_guard(&conf, first, wrapper ? wrapper : first);
}
