/* `connect PATH` (or `@NAME`, without a path): carries bytes between standard input and output and the helper's socket, so that one engine exec is a connection.
 * `reach NAME FD`: hands over that very connection, to a caller on the container's own machine who may step into it. */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "helper.h"

#define LOOK_MS 5  /* between two looks whether somebody listens */

struct lane { int from, to; bool open; size_t have, done; uint8_t data[CHUNK]; };

/* Moves what can be moved now; a lane closes when its source has ended and everything was passed on. */
static void move(struct lane *l, short from_events, short to_events)
{
    if (l->have == l->done && from_events & (POLLIN | POLLHUP | POLLERR)) {
        ssize_t n = read(l->from, l->data, sizeof l->data);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
        l->done = 0;
        l->have = n > 0 ? (size_t)n : 0;
        if (n <= 0) l->open = false;
    }
    if (l->have > l->done && to_events & (POLLOUT | POLLERR | POLLHUP)) {
        ssize_t n = write(l->to, l->data + l->done, l->have - l->done);
        if (n > 0) l->done += (size_t)n;
        else if (n < 0 && errno != EINTR && errno != EAGAIN) {
            l->open = false;
            l->done = l->have;
        }
    }
}

/* Carries both ways until the far side ends; our own end of input is passed on as a half-close. */
static int relay(int fd)
{
    static struct lane up, down;
    fcntl(fd, F_SETFL, O_NONBLOCK); /* a write that waits would keep us from reading, and both ends could wait for ever */
    up = (struct lane){.from = 0, .to = fd, .open = true};
    down = (struct lane){.from = fd, .to = 1, .open = true};
    bool told = false;
    while (down.open || down.have > down.done) {
        bool up_full = up.have > up.done, down_full = down.have > down.done;
        struct pollfd p[4] = {
            {up.open && !up_full ? 0 : -1, POLLIN, 0}, {up_full ? fd : -1, POLLOUT, 0},
            {down_full ? -1 : fd, POLLIN, 0}, {down_full ? 1 : -1, POLLOUT, 0},
        };
        if (poll(p, 4, -1) < 0 && errno != EINTR) return 1;
        if (up.open || up_full) move(&up, p[0].revents, p[1].revents);
        move(&down, p[2].revents, p[3].revents);
        if (!up.open && up.have == up.done && !told) {
            shutdown(fd, SHUT_WR);
            told = true;
        }
    }
    return 0;
}

/* Reaches a port of loopback; -1 with `errno`. A request may come in several records: none waits until the server has acknowledged the one before. */
static int reached(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!connect(fd, (struct sockaddr *)&address, sizeof address)) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* A stream to a port on the place's own loopback: the first record says whether it was reached, the rest is the connection's.
 * Where nobody listens yet, it looks again for as long as it was told: whoever waits for a server need not ask again and again. */
int tcp_main(struct span payload)
{
    uint16_t port = (uint16_t)tlv_u64(payload, K_PORT, 0);
    uint64_t wait = tlv_u64(payload, K_WAIT_MS, 0), began = clock_ms(CLOCK_MONOTONIC);
    uint8_t answer[4];
    int fd;
    while ((fd = reached(port)) < 0 && errno == ECONNREFUSED && clock_ms(CLOCK_MONOTONIC) - began < wait) poll(NULL, 0, LOOK_MS);
    int error = fd < 0 ? errno : 0;
    put32(answer, (uint32_t)error);
    signal(SIGPIPE, SIG_IGN);
    if (!write_all(1, answer, sizeof answer) || error) return 1;
    return relay(fd);
}

int connect_main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    prctl(PR_SET_DUMPABLE, 0); /* secrets pass through */
    if (argc != 2 || strlen(argv[1]) >= sizeof address.sun_path) return 2;
    strcpy(address.sun_path, argv[1]);
    int fd = *argv[1] == '@' ? container_connect(argv[1] + 1) : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || (*argv[1] != '@' && connect(fd, (struct sockaddr *)&address, sizeof address))) return 1;
    signal(SIGPIPE, SIG_IGN);
    return relay(fd);
}

/* Sends a descriptor over a socket, with one byte. */
static bool hand_over(int to, int fd)
{
    union { struct cmsghdr head; char room[CMSG_SPACE(sizeof fd)]; } control = {0};
    char byte = 0;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    return sendmsg(to, &message, MSG_NOSIGNAL) == 1;
}

/* FD stands for the container's first process, so that a number which another process has got meanwhile is nobody else's. Only what has a
 * number in the container's process namespace is trusted there (container.c), and that a child alone can have: the child connects, hands the
 * connection over on standard input, and is gone. Whose container has users of its own becomes its root first.
 * No container ends while a child of somebody outside is left in it unreaped. So the child is waited for, and whoever wants no more of this
 * program closes the other end of its standard input, upon which it ends the child, which the container may have stopped, and itself. */
int reach_main(int argc, char **argv)
{
    if (argc != 3) return 2;
    int first = atoi(argv[2]), status;
    if (!setns(first, CLONE_NEWUSER) && (setresgid(0, 0, 0) || setresuid(0, 0, 0))) return 1;
    if (setns(first, CLONE_NEWNET | CLONE_NEWPID)) return 1;
    prctl(PR_SET_DUMPABLE, 0);
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int fd = container_connect(argv[1]);
        _exit(fd >= 0 && hand_over(0, fd) ? 0 : 1);
    }
    if (child < 0) return 1;
    struct pollfd p[2] = {{0, 0, 0}, {(int)syscall(SYS_pidfd_open, child, 0), POLLIN, 0}};
    while (p[1].fd >= 0 && poll(p, 2, -1) < 0 && errno == EINTR) continue;
    kill(child, SIGKILL);
    return waitpid(child, &status, 0) == child && !status ? 0 : 1;
}
