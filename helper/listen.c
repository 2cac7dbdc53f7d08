/* `listen PATH`: for a machine on which we can run a program and speak with it, and nothing more. Makes the place's socket at PATH, reads
 * the configuration from standard input (u32 length, bytes), serves in the background, and says "ready" once callers can connect. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "helper.h"

#define CONFIG_MAX (1u << 20)
#define FIRST_FD 10 /* above the standard streams, which are replaced */

static int failed(const char *why)
{
    write_all(1, "failed: ", 8);
    write_all(1, why, strlen(why));
    write_all(1, "\n", 1);
    return 1;
}

/* The configuration as a descriptor: it holds the token, which must stand in no argument, variable or file. */
static int config_read(void)
{
    static uint8_t data[CHUNK];
    uint8_t head[4];
    int fd = memfd_create("agentenv-config", MFD_CLOEXEC);
    if (fd < 0 || !read_all(0, head, sizeof head) || get32(head) > CONFIG_MAX) return -1;
    for (uint32_t left = get32(head); left;) {
        uint32_t part = left < sizeof data ? left : (uint32_t)sizeof data;
        if (!read_all(0, data, part) || !write_all(fd, data, part)) return -1;
        explicit_bzero(data, part);
        left -= part;
    }
    return lseek(fd, 0, SEEK_SET) ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD);
}

static int socket_make(const struct sockaddr_un *address, const char **why)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *why = "no socket can be made";
    if (fd < 0) return -1;
    if (!connect(fd, (const struct sockaddr *)address, sizeof *address)) {
        *why = "somebody listens there already";
        return -1;
    }
    *why = "the socket can't be made in its folder";
    unlink(address->sun_path);
    umask(077);
    if (bind(fd, (const struct sockaddr *)address, sizeof *address) || listen(fd, MAX_CONNECTIONS)) return -1;
    return fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD);
}

/* Twice forked and in a session of its own: nobody who ran us waits for it, or ends it by ending a session. */
static void serve_apart(int fd, int config, const char *path)
{
    char log[sizeof((struct sockaddr_un *)0)->sun_path + 8], fd_text[12], config_text[12];
    char *words[] = {"serve", "--fd", fd_text, "--config-fd", config_text, NULL};
    if (setsid() < 0 || fork()) _exit(0);
    snprintf(log, sizeof log, "%s.log", path);
    snprintf(fd_text, sizeof fd_text, "%d", fd);
    snprintf(config_text, sizeof config_text, "%d", config);
    int null = open("/dev/null", O_RDWR), out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    dup2(null, 0);
    dup2(null, 1);
    dup2(out < 0 ? null : out, 2);
    _exit(serve_main(5, words));
}

int listen_main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *why;
    if (argc != 2 || strlen(argv[1]) >= sizeof address.sun_path) return failed("needs one path of at most 107 bytes");
    strcpy(address.sun_path, argv[1]);
    int config = config_read();
    if (config < 0) return failed("the configuration can't be read");
    int fd = socket_make(&address, &why);
    if (fd < 0) return failed(why);
    pid_t child = fork();
    if (!child) serve_apart(fd, config, argv[1]);
    if (child < 0) return failed("the place has no room for another process");
    waitpid(child, NULL, 0);
    return write_all(1, "ready\n", 6) ? 0 : 1;
}
