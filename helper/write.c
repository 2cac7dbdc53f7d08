/* Writing files whole or not at all: into a file without a name, which a kill at any moment leaves nothing of; checked, then put in place. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "helper.h"

#define MODE_MASK 01777 /* set-id bits never pass */

/* The file that is being written. One at a time; the signal handler removes it when the worker is told to go. */
static struct {
    int fd, dir, error;
    uint32_t index, mode, trusted;
    char temporary[32], *path, *name;
    struct sha256 sum;
    uint64_t size;
} now = {.fd = -1, .dir = -1};

static volatile sig_atomic_t unfinished;
static struct identity owner;
static bool sync_files;

static void leave(int sig)
{
    if (unfinished) unlinkat(now.dir, now.temporary, 0);
    _exit(128 + sig);
}

/* Makes the folders of a path up to one of its slashes, owned as the file will be. */
static int make_parents(char *path, const char *end)
{
    for (char *slash = path + 1; (slash = strchr(slash, '/')) && slash <= end; slash++) {
        *slash = 0;
        int made = mkdir(path, 0755), error = errno;
        if (!made && (chown(path, owner.uid, owner.gid) || chmod(path, 0755))) error = errno;
        else if (!made || error == EEXIST || error == EISDIR) error = 0;
        else if (!access(path, F_OK)) error = 0; /* a read-only or guarded folder that is there already */
        *slash = '/';
        if (error) return error;
    }
    return 0;
}

static void temporary_name(void)
{
    static unsigned number;
    char *end = now.temporary + sizeof now.temporary - 1;
    *end = 0;
    unsigned pid = (unsigned)getpid(), n = ++number;
    memcpy(end -= 4, ".tmp", 4);
    do *--end = (char)('0' + n % 10); while (n /= 10);
    *--end = '-';
    do *--end = (char)('0' + pid % 10); while (pid /= 10);
    memcpy(end -= 5, ".aen-", 5);
    memmove(now.temporary, end, strlen(end) + 1);
}

static int open_folder(char *slash)
{
    *slash = 0;
    int dir = open(slash == now.path ? "/" : now.path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    *slash = '/';
    return dir;
}

/* A fresh folder gets its owner and mode; a link that has taken its name meanwhile does not. */
static int settle(int dir, const char *name, uint32_t mode)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int error = fd < 0 || fchown(fd, owner.uid, owner.gid) || fchmod(fd, mode) ? errno : 0;
    if (fd >= 0) close(fd);
    return error;
}

/* A folder by its name, made where it is missing. A link is none. */
static int step_into(int dir, const char *name)
{
    if (!*name || !strcmp(name, "..")) return errno = EINVAL, -1;
    int next = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (next >= 0 || errno != ENOENT) return next;
    if (!mkdirat(dir, name, 0755)) errno = settle(dir, name, 0755);
    else if (errno == EEXIST) errno = 0;
    return errno ? -1 : openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* The folder that the last name stands in. Links are followed in as much of the path as is trusted: whoever else works in the place may put
 * one anywhere at any moment, so what is below is gone through name by name. What is missing is made. */
static int open_parent(void)
{
    char *last = strrchr(now.path, '/'), *at = last - now.path <= now.trusted ? last : now.path + now.trusted;
    now.name = last + 1;
    if (*at != '/') return EINVAL;
    now.dir = open_folder(at);
    if (now.dir < 0 && errno == ENOENT) {
        int error = make_parents(now.path, at);
        if (error) return error;
        now.dir = open_folder(at);
    }
    while (now.dir >= 0 && at < last) {
        char *name = at + 1;
        at = strchr(name, '/');
        *at = 0;
        int above = now.dir, error;
        now.dir = step_into(above, name);
        error = errno;
        *at = '/';
        close(above);
        errno = error;
    }
    return now.dir < 0 ? errno : 0;
}

static int open_temporary(void)
{
    struct stat st;
    const char *name = strrchr(now.path, '/') + 1;
    if (!*name || !strcmp(name, ".") || !strcmp(name, "..")) return EISDIR;
    int error = open_parent();
    if (error) return error;
    if (!fstatat(now.dir, now.name, &st, AT_SYMLINK_NOFOLLOW) && S_ISDIR(st.st_mode)) return EISDIR;
    if (strlen(now.name) > 255) return ENAMETOOLONG;
    now.fd = openat(now.dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (now.fd >= 0) return 0;
    for (int i = 0; i < 100; i++) { /* a file system that can't: the name is there from the start */
        temporary_name();
        now.fd = openat(now.dir, now.temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (now.fd >= 0 || errno != EEXIST) break;
    }
    if (now.fd < 0) return errno;
    unfinished = 1;
    return 0;
}

static void let_go(void)
{
    if (now.fd >= 0) close(now.fd);
    if (unfinished) unlinkat(now.dir, now.temporary, 0);
    unfinished = 0;
    if (now.dir >= 0) close(now.dir);
    free(now.path);
    now.fd = now.dir = -1;
    now.path = NULL;
}

static void begin(const struct record_in *r)
{
    let_go();
    now.index = r->index;
    now.size = 0;
    now.error = r->payload.len > 8 ? 0 : EINVAL;
    sha256_begin(&now.sum);
    if (now.error) return;
    now.mode = get32(r->payload.data) & MODE_MASK;
    now.trusted = get32(r->payload.data + 4);
    now.path = span_text((struct span){r->payload.data + 8, r->payload.len - 8});
    if (!now.path || *now.path != '/') now.error = EINVAL;
}

/* Gives a file without a name its temporary one. */
static int name_it(void)
{
    char source[32];
    snprintf(source, sizeof source, "/proc/self/fd/%d", now.fd);
    for (int i = 0; i < 100; i++) {
        temporary_name();
        if (!linkat(AT_FDCWD, source, now.dir, now.temporary, AT_SYMLINK_FOLLOW)) {
            unfinished = 1;
            return 0;
        }
        if (errno != EEXIST) break;
    }
    return errno;
}

static int finish(const struct span *expected, uint8_t digest[32])
{
    sha256_end(&now.sum, digest);
    if (expected->len == 32 && !same_bytes(*expected, (struct span){digest, 32})) return EBADMSG;
    if (fchown(now.fd, owner.uid, owner.gid) || fchmod(now.fd, now.mode)) return errno;
    if (sync_files && fsync(now.fd)) return errno;
    int error = unfinished ? 0 : name_it();
    if (error) return error;
    int fd = now.fd;
    now.fd = -1;
    if (close(fd)) return errno;
    if (renameat(now.dir, now.temporary, now.dir, now.name)) return errno;
    unfinished = 0;
    return 0;
}

static int make_folder(void)
{
    struct stat st;
    size_t len = strlen(now.path);
    while (len > 1 && now.path[len - 1] == '/') now.path[--len] = 0;
    if (len == 1) return 0;
    int error = open_parent();
    if (error) return error;
    if (!mkdirat(now.dir, now.name, now.mode)) return settle(now.dir, now.name, now.mode);
    error = errno;
    if (error != EEXIST && error != EROFS) return error;
    if (fstatat(now.dir, now.name, &st, now.trusted < len ? AT_SYMLINK_NOFOLLOW : 0)) return error == EROFS ? EROFS : errno;
    return S_ISDIR(st.st_mode) ? 0 : ENOTDIR; /* one that is there keeps its owner and mode */
}

static int add(const struct record_in *r)
{
    if (r->index != now.index || now.fd < 0) return EINVAL;
    sha256_add(&now.sum, r->payload.data, r->payload.len);
    now.size += r->payload.len;
    return write_all(now.fd, r->payload.data, r->payload.len) ? 0 : errno ? errno : EIO;
}

static int find_owner(struct span payload)
{
    struct span value;
    if (!tlv_find(payload, K_OWNER, &value)) return identity_default(&owner, false);
    char *spec = span_text(value);
    int error = spec ? identity_find(spec, &owner) : EINVAL;
    free(spec);
    return error;
}

void write_files(struct span payload)
{
    struct record_in r;
    struct sigaction action = {.sa_handler = leave};
    int no_owner = find_owner(payload);
    sync_files = tlv_u64(payload, K_FLAGS, 0) & FILE_SYNC;
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    umask(0);
    while (record_read(&r)) {
        uint8_t digest[32] = {0};
        if (r.type == R_FILE || r.type == R_FOLDER) {
            begin(&r);
            if (!now.error) now.error = no_owner ? ESRCH : r.type == R_FILE ? open_temporary() : make_folder();
            if (r.type == R_FILE) continue;
        } else if (r.type == R_DATA) {
            if (!now.error) now.error = add(&r);
            continue;
        } else if (r.type == R_END && !now.error) {
            now.error = now.fd < 0 ? EINVAL : finish(&r.payload, digest);
        }
        if (now.error) record_error(r.index, now.error);
        else record_send(R_DONE, r.index, digest, sizeof digest);
        let_go();
        now.error = EINVAL;
    }
    let_go();
}
