/* The helper as a container's first process. It is started with nothing but a name, waits on an abstract socket of that name (which needs
 * no file system), and is told who it is by the first frame of a caller that stands in the same container as the same user: only there do
 * secrets come in, so an engine never sees them. A container that is started again waits again. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "helper.h"

#define CAP_SYS_PTRACE_BIT 19
#define CAP_MKNOD_BIT 27
#define CONNECT_TRIES 2000 /* about as many milliseconds */
#define PARTING_MS 500 /* callers hear how the image's own command ended before everything is ended */

/* The address of a socket without a path; its length is part of it. */
static socklen_t abstract(const char *name, struct sockaddr_un *address)
{
    size_t len = strlen(name);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (!len || len >= sizeof address->sun_path) return 0;
    memcpy(address->sun_path + 1, name, len);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
}

static int open_abstract(const char *name, int (*act)(int, const struct sockaddr *, socklen_t))
{
    struct sockaddr_un address;
    socklen_t len = abstract(name, &address);
    int fd = len ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0 || !act(fd, (struct sockaddr *)&address, len)) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* An engine calls a container started a moment before its first process listens. */
int container_connect(const char *name)
{
    struct timespec pause = {.tv_nsec = 1000000};
    int fd = -1;
    for (int i = 0; i < CONNECT_TRIES && (fd = open_abstract(name, connect)) < 0 && errno == ECONNREFUSED; i++) nanosleep(&pause, NULL);
    return fd;
}

bool container_listen(const char *name)
{
    int fd = open_abstract(name, bind);
    if (fd < 0 || listen(fd, MAX_CONNECTIONS)) return false;
    g.listen = fcntl(fd, F_DUPFD_CLOEXEC, 10);
    close(fd);
    g.awaiting = g.listen >= 0;
    return g.awaiting;
}

/* Whether a caller may say who this place is: the abstract name is seen by every process of the network namespace, which may be shared
 * with other containers or the host, but only what an engine started in this very container has a number in its process namespace. */
bool container_trusts(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) && peer.pid > 0 && peer.uid == getuid();
}

/* An engine's exec has one capability more than anything that runs here, so that nothing here may trace it, however early. */
void container_harden(void)
{
    if (!(g.config.flags & C_ALL_CAPABILITIES)) {
        prctl(PR_CAPBSET_DROP, CAP_MKNOD_BIT);
        prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE_BIT);
    }
    if (!(g.config.flags & C_NEW_PRIVILEGES)) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

/* What an engine may be asked to send is passed on to the image's command. */
void container_signals(sigset_t *mask)
{
    static const int more[] = {SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) sigaddset(mask, more[i]);
    for (int sig = SIGRTMIN; sig <= SIGRTMAX; sig++) sigaddset(mask, sig);
}

bool container_ends_on(int sig) { return sig == SIGTERM || sig == SIGINT || sig == SIGHUP || sig == SIGQUIT; }

/* Takes the place's configuration in and starts its command, whose start or failure is told on the same stream. */
bool container_configure(struct conn *c, uint32_t stream, struct span payload)
{
    struct span entry;
    uint8_t *copy = malloc(payload.len);
    if (!copy) return false;
    memcpy(copy, payload.data, payload.len);
    if (!config_take((struct span){copy, payload.len})) {
        explicit_bzero(copy, payload.len);
        free(copy);
        return false;
    }
    g.awaiting = false;
    container_harden();
    if (g.config.ttl_ms) g.ttl_at = clock_ms(CLOCK_BOOTTIME) + g.config.ttl_ms;
    if (!(g.config.flags & C_ENTRY_LATER) && tlv_find(g.config.whole, K_ENTRY_ARG, &entry)) exec_entry(c, stream);
    return true;
}

/* The image's command is over, and with it the place, unless it is held. */
void container_entry_ended(const struct status *ending)
{
    uint8_t p[12] = {REFUSED_ENDED};
    if (g.hold) return;
    for (struct conn *c = g.conns; c; c = c->next)
        if (c->greeted) conn_send(c, F_REFUSED, 0, p, sizeof p);
    g.exit_code = ending->kind == S_FAILED ? 127 : WIFSIGNALED(ending->a) ? 128 + WTERMSIG(ending->a) : WEXITSTATUS(ending->a);
    g.stopping = g.parting = true;
    g.stop_at = g.now_ms + PARTING_MS;
}

/* A program opens /dev/stdout by its path, for which it must own the pipe behind it, as engines see to. */
void own_streams(const struct identity *who)
{
    struct stat st;
    for (int fd = 0; fd < 3 && who->uid != getuid(); fd++)
        if (!fstat(fd, &st) && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)) && fchown(fd, who->uid, (gid_t)-1)) continue;
}

static bool copy_self(int to)
{
    static uint8_t data[CHUNK];
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    ssize_t n = -1;
    while (from >= 0 && (n = read(from, data, sizeof data)) > 0)
        if (!write_all(to, data, (size_t)n)) return false;
    return from >= 0 && n == 0 && !fchmod(to, 0755) && !fsync(to);
}

/* `install FOLDER`: puts this program there as `helper`, whole or not at all, whoever else does the same. */
int install_main(int argc, char **argv)
{
    char fresh[4096], final[4096];
    uint64_t nonce = 0;
    if (argc != 2 || strlen(argv[1]) > sizeof final - 64) return 2;
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) return 1;
    snprintf(fresh, sizeof fresh, "%s/.%llu", argv[1], (unsigned long long)nonce);
    snprintf(final, sizeof final, "%s/helper", argv[1]);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    /* A program that somebody holds open for writing can't be started, so it is closed before anybody can find it. */
    if (fd >= 0 && copy_self(fd) && !close(fd) && !rename(fresh, final)) return 0;
    int size = snprintf(final, sizeof final, "can't install: errno %d\n", errno);
    if (size > 0) write_all(2, final, (size_t)size);
    unlink(fresh);
    return 1;
}
