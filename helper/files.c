/* File work in bulk, in a forked worker: records in from 0, records out to 1. Looks; write.c changes.
 *
 * Names are any bytes. Nothing here waits on a fifo or a device, and nothing follows the kernel's magic links into other processes. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "helper.h"

#define RESOLVE_NO_MAGICLINKS 0x02
#define NAMES_MAX (256u << 20)
#define DEPTH_MAX 900
#define KERNEL_FILE_MAX (16u << 20) /* /proc/PID/pagemap would go on for ever */
#define LINK_MAX_BYTES 4096
#define ENTRY_HEAD 40

struct how { uint64_t flags, mode, resolve; };

static uint8_t out_bytes[CHUNK + 64];
static size_t out_have;
static struct buf in_bytes;

void record_flush(void)
{
    if (!write_all(1, out_bytes, out_have)) _exit(1);
    out_have = 0;
}

void record_send(uint8_t type, uint32_t index, const void *payload, size_t len)
{
    uint8_t head[9];
    put32(head, (uint32_t)(5 + len));
    head[4] = type;
    put32(head + 5, index);
    if (out_have + 9 + len > sizeof out_bytes) record_flush();
    memcpy(out_bytes + out_have, head, 9);
    out_have += 9;
    if (len > sizeof out_bytes - out_have) {
        record_flush();
        if (!write_all(1, payload, len)) _exit(1);
        return;
    }
    if (len) memcpy(out_bytes + out_have, payload, len);
    out_have += len;
}

void record_error(uint32_t index, int error)
{
    uint8_t p[4];
    put32(p, (uint32_t)error);
    record_send(R_ERROR, index, p, sizeof p);
}

/* The next request, or false at the end. Answers are flushed before waiting, so that asking one by one works too. */
bool record_read(struct record_in *r)
{
    static size_t taken;
    buf_take(&in_bytes, taken);
    taken = 0;
    for (;;) {
        size_t have = in_bytes.len - in_bytes.off;
        const uint8_t *p = in_bytes.data + in_bytes.off;
        uint32_t length = have >= 9 ? get32(p) : 5;
        if (length < 5 || length > MAX_FRAME) _exit(2);
        if (have >= 9 && have >= 4 + (size_t)length) {
            *r = (struct record_in){p[4], get32(p + 5), {p + 9, length - 5}};
            taken = 4 + length;
            return true;
        }
        if (out_have) record_flush();
        uint8_t *room = buf_room(&in_bytes, CHUNK);
        if (!room) _exit(3);
        ssize_t n = read(0, room, CHUNK);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        in_bytes.len += (size_t)n;
    }
}

/* Opens a regular file for reading, its links followed; -1 with EISDIR, ELOOP, EINVAL (device, fifo, socket) or what the kernel said. */
int open_regular(int dir, const char *path, int *error)
{
    struct stat st;
    struct how how = {O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0, RESOLVE_NO_MAGICLINKS};
    int fd = -1;
    if (fstatat(dir, path, &st, 0)) {
        *error = errno;
    } else if (!S_ISREG(st.st_mode)) {
        *error = S_ISDIR(st.st_mode) ? EISDIR : EINVAL; /* opening a device can have effects: look first */
    } else {
        fd = (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
        if (fd < 0 && (errno == ENOSYS || errno == EPERM)) fd = openat(dir, path, (int)how.flags);
        if (fd < 0) *error = errno;
    }
    if (fd >= 0 && (fstat(fd, &st) || !S_ISREG(st.st_mode))) {
        close(fd);
        *error = EINVAL;
        return -1;
    }
    return fd;
}

/* How much of a file is read: what is written while it is read is not waited for, so it is as long as it was when it was opened. Only the
 * kernel's own files, on file systems that have no blocks, say that they are empty and are not. They are read to their end, which some do
 * not have: `limit` becomes what such a file may hold. */
static uint64_t length_of(int fd, const struct stat *st, uint64_t *limit)
{
    struct statfs files;
    if (st->st_size || fstatfs(fd, &files) || files.f_blocks) return (uint64_t)st->st_size;
    if (*limit > KERNEL_FILE_MAX) *limit = KERNEL_FILE_MAX;
    return NEVER;
}

static bool digest_file(int dir, const char *path, uint8_t digest[32])
{
    static uint8_t data[CHUNK];
    struct sha256 s;
    struct stat st;
    int error, fd = open_regular(dir, path, &error);
    ssize_t n = 0;
    if (fd < 0) return false;
    uint64_t limit = NEVER - 1, total = 0, length = fstat(fd, &st) ? 0 : length_of(fd, &st, &limit);
    sha256_begin(&s);
    while (total < length && (n = read(fd, data, length - total < sizeof data ? length - total : sizeof data)) > 0) {
        total += (uint64_t)n;
        if (total > limit) break;
        sha256_add(&s, data, (size_t)n);
    }
    close(fd);
    sha256_end(&s, digest);
    return n >= 0 && total <= limit;
}

/* kind, has digest, u16 mode, uid, gid, size, mtime ns, u32 path length, u32 target length; then digest, path, target. */
static void send_entry(uint32_t index, int dir, const char *name, struct span path, const struct stat *st, bool digest)
{
    static uint8_t p[ENTRY_HEAD + 32 + 2 * 65536];
    size_t at = ENTRY_HEAD;
    ssize_t target = 0;
    if (path.len > 65536) return record_error(index, ENAMETOOLONG);
    p[0] = S_ISREG(st->st_mode) ? 0 : S_ISDIR(st->st_mode) ? 1 : S_ISLNK(st->st_mode) ? 2 : 3;
    p[1] = digest && S_ISREG(st->st_mode) && digest_file(dir, name, p + at);
    if (p[1]) at += 32;
    p[2] = (uint8_t)st->st_mode;
    p[3] = (uint8_t)((st->st_mode & 07777) >> 8);
    put32(p + 4, st->st_uid);
    put32(p + 8, st->st_gid);
    put64(p + 12, (uint64_t)st->st_size);
    put64(p + 20, (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec);
    put32(p + 28, (uint32_t)path.len);
    if (path.len) memcpy(p + at, path.data, path.len);
    at += path.len;
    if (S_ISLNK(st->st_mode) && (target = readlinkat(dir, name, (char *)p + at, LINK_MAX_BYTES)) < 0) target = 0;
    put32(p + 32, (uint32_t)target);
    record_send(R_ENTRY, index, p, at + (size_t)target);
}

static void stat_one(uint32_t index, const char *path, uint64_t flags)
{
    struct stat st;
    if (fstatat(AT_FDCWD, path, &st, flags & FILE_FOLLOW ? 0 : AT_SYMLINK_NOFOLLOW)) return record_error(index, errno);
    send_entry(index, AT_FDCWD, path, (struct span){0}, &st, flags & FILE_DIGEST);
}

/* -------- walk -------- */

struct walk { uint32_t index; bool digest; size_t names; struct buf path; };

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The names of a folder, sorted; NULL with errno when it can't be read or holds too many. */
static char **names_of(struct walk *w, int fd, size_t *count)
{
    size_t room = 64;
    char **names = malloc(room * sizeof *names);
    DIR *listing = fdopendir(fd);
    *count = 0;
    if (!listing || !names) return NULL;
    for (struct dirent *e; (e = readdir(listing));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        w->names += strlen(e->d_name) + 1 + sizeof *names;
        if (*count == room) {
            char **more = realloc(names, (room *= 2) * sizeof *names);
            if (!more) return NULL;
            names = more;
        }
        if (w->names > NAMES_MAX || !(names[*count] = strdup(e->d_name))) {
            errno = ENOMEM;
            return NULL;
        }
        ++*count;
    }
    closedir(listing);
    qsort(names, *count, sizeof *names, by_bytes);
    return names;
}

static int open_folder(int dir, const char *name) { return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK); }

static void walk_error(const struct walk *w, int error)
{
    uint8_t p[4 + 65536];
    size_t n = w->path.len < 65536 ? w->path.len : 65536;
    put32(p, (uint32_t)error);
    if (n) memcpy(p + 4, w->path.data, n);
    record_send(R_ERROR, w->index, p, 4 + n);
}

static void walk(struct walk *w, int fd, int depth)
{
    size_t count, base = w->path.len;
    int listing = depth < DEPTH_MAX ? dup(fd) : -1;
    if (depth >= DEPTH_MAX) errno = ENAMETOOLONG;
    char **names = listing < 0 ? NULL : names_of(w, listing, &count);
    if (!names) return walk_error(w, errno);
    for (size_t i = 0; i < count; i++) {
        struct stat st;
        size_t len = strlen(names[i]);
        uint8_t *p = buf_room(&w->path, len + 1);
        if (!p) _exit(3);
        if (base) *p++ = '/', w->path.len++;
        memcpy(p, names[i], len);
        w->path.len += len;
        if (fstatat(fd, names[i], &st, AT_SYMLINK_NOFOLLOW)) {
            if (errno != ENOENT) walk_error(w, errno); /* what went while we looked was never there; the rest is told */
        } else {
            send_entry(w->index, fd, names[i], (struct span){w->path.data, w->path.len}, &st, w->digest);
            int below = S_ISDIR(st.st_mode) ? open_folder(fd, names[i]) : -1;
            if (S_ISDIR(st.st_mode) && below < 0) walk_error(w, errno);
            if (below >= 0) {
                walk(w, below, depth + 1);
                close(below);
            }
        }
        w->path.len = base;
        w->names -= len + 1 + sizeof *names;
        free(names[i]);
    }
    free(names);
}

static void walk_one(uint32_t index, const char *root, uint64_t flags)
{
    struct walk w = {.index = index, .digest = flags & FILE_DIGEST};
    int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return record_error(index, errno);
    walk(&w, fd, 0);
    close(fd);
    record_send(R_DONE, index, NULL, 0);
}

/* -------- read -------- */

static void read_one(uint32_t index, const char *path, uint64_t limit)
{
    static uint8_t data[CHUNK - 64];
    struct sha256 s;
    struct stat st;
    uint8_t digest[32];
    uint64_t total = 0;
    int error, fd = open_regular(AT_FDCWD, path, &error);
    ssize_t n;
    if (fd < 0) return record_error(index, error);
    error = fstat(fd, &st) ? errno : (uint64_t)st.st_size > limit ? EFBIG : 0;
    if (error) {
        close(fd);
        return record_error(index, error);
    }
    sha256_begin(&s);
    uint64_t length = length_of(fd, &st, &limit);
    while ((n = length > total ? read(fd, data, length - total < sizeof data ? length - total : sizeof data) : 0) > 0) {
        total += (uint64_t)n;
        if (total > limit) break;
        sha256_add(&s, data, (size_t)n);
        record_send(R_DATA, index, data, (size_t)n);
    }
    error = errno;
    close(fd);
    if (n) return record_error(index, n < 0 ? error : EFBIG);
    sha256_end(&s, digest);
    record_send(R_DONE, index, digest, sizeof digest);
}

/* -------- remove -------- */

#define REMOVE_DEPTH 200
#define REMOVE_PASSES 100000

static int remove_at(int dir, const char *name, int top, int depth);

static int empty_folder(int fd, int top, int depth)
{
    int listing = dup(fd), error = 0;
    DIR *d = listing < 0 ? NULL : fdopendir(listing);
    if (!d) return errno;
    rewinddir(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        int why = remove_at(fd, e->d_name, top, depth);
        if (why) error = why;
    }
    closedir(d);
    return error;
}

/* A tree deeper than we hold folders open for is hung up beside the top and taken in the next pass. */
static int hang_up(int dir, const char *name, int top)
{
    static unsigned number;
    char fresh[] = ".agentenv-00000000";
    for (unsigned v = ++number, i = sizeof fresh - 2; v; v /= 10) fresh[i--] = (char)('0' + v % 10);
    return renameat(dir, name, top, fresh) ? errno : 0;
}

/* A folder that is to be emptied. One that its own owner may not list, enter or change (mode 0, a module cache of mode 0555) is made so
 * that he may; a link in its place is never touched. */
static int open_doomed(int dir, const char *name)
{
    char self[40];
    struct stat st;
    int fd = open_folder(dir, name);
    int handle = fd < 0 && errno == EACCES ? openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (handle >= 0) {
        snprintf(self, sizeof self, "/proc/self/fd/%d", handle);
        if (!chmod(self, 0700)) fd = open(self, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        else errno = EACCES;
        int error = errno;
        close(handle);
        errno = error;
    }
    if (fd >= 0 && !fstat(fd, &st) && (st.st_mode & 0700) != 0700) fchmod(fd, (st.st_mode & 07777) | 0700);
    return fd;
}

static int remove_at(int dir, const char *name, int top, int depth)
{
    if (!unlinkat(dir, name, 0)) return 0;
    if (errno == ENOENT) return 0;
    if (errno != EISDIR && errno != EPERM) return errno;
    int unlinked = errno, fd = open_doomed(dir, name);
    if (fd < 0) return errno == ENOTDIR || errno == ELOOP ? unlinked : errno;
    int error = ENOTEMPTY;
    for (int pass = 0; pass < REMOVE_PASSES && error == ENOTEMPTY; pass++) {
        error = depth < REMOVE_DEPTH ? empty_folder(fd, depth ? top : fd, depth + 1) : 0;
        if (error && error != ENOTEMPTY) break;
        error = unlinkat(dir, name, AT_REMOVEDIR) && errno != ENOENT ? errno : 0;
        if (error == EEXIST) error = ENOTEMPTY;
        if (depth) break;
    }
    close(fd);
    if (error == ENOTEMPTY && depth >= REMOVE_DEPTH) return hang_up(dir, name, top);
    return error;
}

static void remove_one(uint32_t index, char *path)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/') path[--len] = 0; /* `link/` would mean what the link leads to */
    int error = remove_at(AT_FDCWD, path, -1, 0);
    if (error && error != ENOTDIR) return record_error(index, error);
    record_send(R_DONE, index, NULL, 0);
}

int files_main(struct span payload)
{
    uint64_t operation = tlv_u64(payload, K_OPERATION, 0), flags = tlv_u64(payload, K_FLAGS, 0), limit = tlv_u64(payload, K_FILE_LIMIT, NEVER);
    struct record_in r;
    if (operation == OP_WRITE) {
        write_files(payload);
        record_flush();
        return 0;
    }
    while (record_read(&r)) {
        char *path = r.type == R_PATH ? span_text(r.payload) : NULL;
        if (!path || !*path) record_error(r.index, EINVAL);
        else if (operation == OP_STAT) stat_one(r.index, path, flags);
        else if (operation == OP_WALK) walk_one(r.index, path, flags);
        else if (operation == OP_READ) read_one(r.index, path, limit);
        else if (operation == OP_REMOVE) remove_one(r.index, path);
        else record_error(r.index, ENOSYS);
        free(path);
    }
    record_flush();
    return 0;
}
