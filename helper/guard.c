/* The guardian: the one process of a place that stands outside it. It starts and ends the place's networking, has what goes over a limit
 * that the kernel does not hold stopped (watch.c), and says how the place ended. It can't be seen or signalled from inside. */
#define _GNU_SOURCE
#include "confine.h"
#include "ready.h"
#include "watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
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
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NS_GET_USERNS 0xb701 /* linux/nsfs.h */

#define TAP "tap0"

#define STARTER_MS 2000
#define LOOPBACK_MS 20000      /* a machine under load; whoever starts the place waits no longer than that for its network */
#define LOOK_MS 100          /* how often limits are looked at */

long long confine_now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void confine_tell(const struct confinement *conf, const char *format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  int size = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (conf->events_fd > 0 && size > 0 && write(conf->events_fd, line, (size_t)size) < 0) return; /* a full disk: nobody to tell */
}

/* ---- networking ---------------------------------------------------------------------------------------------------------- */

/* Where clouds tell a machine its own keys: nothing that a task runs has business there. */
static void refuse_route(int link, int family, const void *address, unsigned char bits) {
  struct {
    struct nlmsghdr head;
    struct rtmsg route;
    struct rtattr to;
    unsigned char address[16];
  } ask = {
      .head = {.nlmsg_type = RTM_NEWROUTE, .nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK},
      .route = {.rtm_family = (unsigned char)family, .rtm_dst_len = bits, .rtm_table = RT_TABLE_MAIN, .rtm_protocol = RTPROT_STATIC,
                .rtm_scope = RT_SCOPE_UNIVERSE, .rtm_type = RTN_UNREACHABLE},
      .to = {.rta_type = RTA_DST},
  };
  struct {
    struct nlmsghdr head;
    struct nlmsgerr error;
  } answer = {0};
  size_t size = family == AF_INET ? 4 : 16;
  ask.to.rta_len = (unsigned short)RTA_LENGTH(size);
  ask.head.nlmsg_len = (unsigned)(NLMSG_LENGTH(sizeof ask.route) + RTA_LENGTH(size));
  memcpy(ask.address, address, size);
  if (send(link, &ask, ask.head.nlmsg_len, 0) < 0 || recv(link, &answer, sizeof answer, 0) < 0) _exit(1);
  /* A place without IPv6 needs no route that refuses it. */
  if (answer.head.nlmsg_type == NLMSG_ERROR && answer.error.error && family == AF_INET) _exit(1);
}

/* Bubblewrap tells its child's number before that has set up its loopback interface, and takes an address that stands there already, as it
 * does once anybody has raised the interface, for an error of its own. So nothing of the network is touched until it has done so. */
static void await_loopback(void) {
  struct timespec pause = {.tv_nsec = 1000000};
  struct ifreq loopback = {.ifr_name = "lo"};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  long long until = confine_now_ms() + LOOPBACK_MS;
  while (fd >= 0 && !ioctl(fd, SIOCGIFFLAGS, &loopback) && !(loopback.ifr_flags & IFF_UP)) {
    if (confine_now_ms() > until) _exit(1);
    nanosleep(&pause, NULL);
  }
  close(fd);
}

static void enter_network(int network, int owner) {
  if (geteuid() && setns(owner, CLONE_NEWUSER)) _exit(1);
  if (setns(network, CLONE_NEWNET)) _exit(1);
}

/* An interface that goes with its last opener has the kernel wait until nobody can still look at it: some 15 ms that slirp4netns takes to
 * die, and who removes the place waits for. One that stays goes with the place's network, whose end nobody waits for. */
static void keep_interface(int stays) {
  struct ifreq tap = {.ifr_name = TAP, .ifr_flags = IFF_TAP | IFF_NO_PI};
  int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  if (!ioctl(fd, TUNSETIFF, &tap)) ioctl(fd, TUNSETPERSIST, stays);
  close(fd);
}

/* In a process that enters the place's network and ends. Nobody inside may change a route again. */
static void refuse_metadata(const struct confinement *conf, int network, int owner) {
  static const unsigned char link_local[4] = {169, 254}, amazon[16] = {0xfd, 0, 0x0e, 0xc2}, google[16] = {0xfd, 0x20, 0, 0xce};
  pid_t child = fork();
  int status = 0, link;
  if (child < 0) _exit(127);
  if (!child) {
    enter_network(network, owner);
    if (conf->bwrap) await_loopback();
    keep_interface(1);
    if ((link = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)) < 0) _exit(1);
    refuse_route(link, AF_INET, link_local, 16);
    refuse_route(link, AF_INET6, amazon, 32);
    refuse_route(link, AF_INET6, google, 32);
    _exit(0);
  }
  if (waitpid(child, &status, 0) != child || status) _exit(127); /* no network rather than one that leads there */
}

static void run_slirp(struct confinement *conf, int network, int owner, int alive) {
  char ready[32], exit_fd[32], net_path[40], owner_path[60], api[300];
  const char *arguments[16];
  int count = 0;
  snprintf(net_path, sizeof net_path, "/proc/self/fd/%d", network);
  snprintf(owner_path, sizeof owner_path, "--userns-path=/proc/self/fd/%d", owner);
  snprintf(exit_fd, sizeof exit_fd, "--exit-fd=%d", alive);
  snprintf(ready, sizeof ready, "--ready-fd=%d", conf->told);
  arguments[count++] = conf->slirp;
  arguments[count++] = "--configure";
  arguments[count++] = "--mtu=65520";
  arguments[count++] = "--disable-host-loopback";
  arguments[count++] = exit_fd;
  arguments[count++] = ready;
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
  arguments[count++] = TAP;
  arguments[count] = NULL;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  refuse_metadata(conf, network, owner);
  conf->kept_count = 0;
  confine_close_others();
  fcntl(network, F_SETFD, 0);
  fcntl(owner, F_SETFD, 0);
  fcntl(alive, F_SETFD, 0);
  fcntl(conf->told, F_SETFD, 0);
  /* Its sandbox throws its view of this machine away, mounts and all. Where a mount is shared (a container engine shares its folder), that
   * would take every container's root away from the machine itself, unless the view is one of our own that tells nobody. */
  if (!geteuid() && (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))) _exit(127);
  execv(conf->slirp, (char **)arguments);
  _exit(127); /* the reader of the ready descriptor sees it close */
}

void confine_tell_first(const struct confinement *conf, char word) {
  if (conf->told >= 0 && send(conf->told, &word, 1, MSG_NOSIGNAL) < 0) return; /* it has ended, and the place with it */
}

/* Starts user-mode networking for the namespace of `first`, which itself tells that process when it is ready. */
static void start_network(struct confinement *conf, pid_t first) {
  char path[64];
  int network, owner, alive[2] = {-1, -1};
  snprintf(path, sizeof path, "/proc/%d/ns/net", first);
  network = open(path, O_RDONLY | O_CLOEXEC);
  owner = network < 0 ? -1 : ioctl(network, NS_GET_USERNS);
  /* Entering the user namespace clears the death signal, so that the end of this pipe, which nobody else holds, says it too. */
  if (owner >= 0 && !pipe2(alive, O_CLOEXEC)) conf->slirp_pid = fork();
  if (alive[0] >= 0 && !conf->slirp_pid) run_slirp(conf, network, owner, alive[0]);
  if (conf->slirp_pid <= 0) {
    conf->slirp_pid = 0;
    confine_tell(conf, "{\"event\": \"no_network\", \"errno\": %d}\n", errno);
    confine_tell_first(conf, TELL_NO_NETWORK);
  } else {
    confine_tell(conf, "{\"event\": \"network\", \"pid\": %d}\n", conf->slirp_pid);
  }
  conf->network = network;
  conf->owner = owner;
  if (alive[0] >= 0) close(alive[0]);
}

/* ---- control groups ---------------------------------------------------------------------------------------------------- */

/* Nothing but the place is a child of the guardian before its networking is started. */
static int place_ended(void) {
  siginfo_t ended = {0};
  return waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) || ended.si_pid;
}

/* The helper's second thread, which forks all that the place runs (start.c); 0 when there is none. */
static pid_t starter_of(pid_t first) {
  struct timespec pause = {.tv_nsec = 1000000};
  char path[40];
  snprintf(path, sizeof path, "/proc/%d/task", first);
  for (int tries = 0; tries < STARTER_MS && !place_ended(); tries++) {
    DIR *listing = opendir(path);
    struct dirent *entry;
    pid_t found = 0;
    if (!listing) return 0;
    while ((entry = readdir(listing)))
      if (atoi(entry->d_name) > 0 && atoi(entry->d_name) != first) found = atoi(entry->d_name);
    closedir(listing);
    if (found) return found;
    nanosleep(&pause, NULL);
  }
  return 0;
}

static int takes_threads(const char *path) {
  const char *name = strrchr(path, '/');
  return name && (!strcmp(name, "/tasks") || !strcmp(name, "/cgroup.threads"));
}

/* Joining a control group waits for the kernel's readers (milliseconds), so the start is reported before; the first process starts no
 * command before it is told. If it can't be done the place ends: it would be without its limits. Where a group takes single threads, the starter
 * alone joins it. */
void confine_join_groups(const struct confinement *conf, pid_t child) {
  char number[24];
  for (int i = 0; i < conf->cgroup_count; i++) {
    int fd = open(conf->cgroups[i], O_WRONLY | O_CLOEXEC);
    snprintf(number, sizeof number, "%d", takes_threads(conf->cgroups[i]) ? starter_of(child) : child);
    if (fd < 0 || number[0] == '0' || write(fd, number, strlen(number)) < 0) {
      kill(child, SIGKILL);
      return;
    }
    close(fd);
  }
  confine_tell_first(conf, TELL_LIMITED);
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

/* Without its interface, what runs there is told at once that nothing can be reached; it would wait for answers otherwise. */
static void network_lost(struct confinement *conf, int expected) {
  pid_t child = expected ? -1 : fork();
  if (!child) {
    enter_network(conf->network, conf->owner);
    keep_interface(0);
    _exit(0);
  }
  if (child > 0) waitpid(child, NULL, 0);
  if (!expected) confine_tell(conf, "{\"event\": \"network_lost\", \"pid\": %d}\n", conf->slirp_pid);
  confine_tell_first(conf, TELL_NO_NETWORK);
  conf->slirp_pid = 0;
}

static void tell_ending(const struct confinement *conf, int status) {
  if (WIFSIGNALED(status))
    confine_tell(conf, "{\"event\": \"ended\", \"signal\": %d}\n", WTERMSIG(status));
  else
    confine_tell(conf, "{\"event\": \"ended\", \"exit_code\": %d}\n", WEXITSTATUS(status));
}

/* Who removes the place says so by SIGTERM: its networking ends at the same time as its processes. */
static int open_signals(void) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGTERM);
  sigaddset(&mask, SIGCHLD);
  sigprocmask(SIG_BLOCK, &mask, NULL);
  return signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Returns whether the place is to end. Only children of ours that nobody has waited for are signalled. */
static int read_signals(const struct confinement *conf, int signals, pid_t child) {
  struct signalfd_siginfo told;
  int end = 0;
  while (read(signals, &told, sizeof told) == sizeof told) end |= told.ssi_signo == SIGTERM;
  if (!end) return 0;
  kill(child, SIGKILL);
  if (conf->slirp_pid) kill(conf->slirp_pid, SIGKILL);
  return 1;
}

static void read_first(struct confinement *conf, pid_t first) {
  char word;
  ssize_t got = recv(conf->told, &word, 1, MSG_DONTWAIT);
  if (got == 1 && word == TELL_WAKE && conf->slirp && !conf->slirp_pid) start_network(conf, first);
  if (got == 0) close(conf->told), conf->told = -1;
}

int confine_guard(struct confinement *conf, pid_t first, pid_t child) {
  int status = 0, ending = 0;
  struct pollfd wait_for[] = {{.fd = open_signals(), .events = POLLIN}, {.fd = conf->told, .events = POLLIN}};
  struct watched watch = confine_watch_begin(conf);
  int watching = conf->watch_memory || conf->watch_disk;
  for (int i = 0; i < conf->kept_count; i++) close(conf->kept[i]);
  if (chdir("/")) return 1;
  for (;;) {
    pid_t ended;
    while ((ended = waitpid(-1, &status, WNOHANG)) > 0 && ended != child)
      if (ended == conf->slirp_pid) network_lost(conf, ending);
    if (ended == child || (ended < 0 && errno == ECHILD)) break;
    if (watching && watch.proc < 0) {
      watch.proc = open_processes(first);
      if (watch.proc >= 0 && conf->watch_memory) watch.shm = open_inside(first, "dev/shm");
    }
    if (watching && watch.proc >= 0) confine_watch(conf, &watch);
    wait_for[1].fd = conf->told;
    poll(wait_for, 2, watching ? LOOK_MS : -1);
    ending |= read_signals(conf, wait_for[0].fd, child);
    if (wait_for[1].revents && conf->told >= 0) read_first(conf, first);
  }
  tell_ending(conf, status);
  if (conf->slirp_pid && !kill(conf->slirp_pid, SIGKILL)) waitpid(conf->slirp_pid, NULL, 0);
  return 0;
}
