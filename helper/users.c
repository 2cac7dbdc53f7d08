/* Who a command runs as: the place's own /etc/passwd and /etc/group, read without any library's help.
 *
 * Only ever called in a supervisor or worker: these files belong to the place, and may be a fifo, a device or endless. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "helper.h"

#define DATABASE_MAX (1u << 20)

/* The whole of a small regular file as text, or NULL. */
static char *slurp(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    char *text = NULL;
    if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size <= (off_t)DATABASE_MAX && (text = malloc(DATABASE_MAX + 1))) {
        size_t have = 0;
        ssize_t n;
        while (have < DATABASE_MAX && (n = read(fd, text + have, DATABASE_MAX - have)) > 0) have += (size_t)n;
        text[have] = 0;
    }
    if (fd >= 0) close(fd);
    return text;
}

static bool number(const char *text, uint32_t *value)
{
    uint64_t v = 0;
    if (!*text) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        v = v * 10 + (uint64_t)(*text - '0');
        if (v >= UINT32_MAX) return false;
    }
    *value = (uint32_t)v;
    return true;
}

/* Splits one line in place at its colons; returns the next line. */
static char *split(char *line, char *fields[7], int *count)
{
    char *end = line;
    *count = 1;
    fields[0] = line;
    for (; *end && *end != '\n'; end++) {
        if (*end != ':' || *count == 7) continue;
        *end = 0;
        fields[(*count)++] = end + 1;
    }
    if (!*end) return NULL;
    *end = 0;
    return end + 1;
}

/* The passwd entry of a name (or of a uid when name is NULL). */
static bool passwd_entry(const char *name, uint32_t uid, struct identity *who, char user[64])
{
    char *text = slurp("/etc/passwd"), *fields[7];
    bool found = false;
    for (char *line = text, *next; line && *line && !found; line = next) {
        int count;
        uint32_t line_uid, line_gid;
        next = split(line, fields, &count);
        if (count < 6 || !number(fields[2], &line_uid) || !number(fields[3], &line_gid)) continue;
        if (name ? strcmp(fields[0], name) != 0 : line_uid != uid) continue;
        found = true;
        who->uid = line_uid;
        who->gid = line_gid;
        if (strlen(fields[5]) < sizeof who->home) strcpy(who->home, fields[5]);
        if (strlen(fields[0]) < 64) strcpy(user, fields[0]);
    }
    free(text);
    return found;
}

static bool in_list(const char *list, const char *user)
{
    size_t len = strlen(user);
    while (*list) {
        const char *end = strchr(list, ',');
        size_t n = end ? (size_t)(end - list) : strlen(list);
        if (n == len && !memcmp(list, user, n)) return true;
        list += n + (end != NULL);
    }
    return false;
}

/* Walks /etc/group: finds a group's number by name, or adds the groups that list `user`. */
static bool groups(const char *wanted, const char *user, struct identity *who)
{
    char *text = slurp("/etc/group"), *fields[7];
    bool found = false;
    for (char *line = text, *next; line && *line; line = next) {
        int count;
        uint32_t gid;
        next = split(line, fields, &count);
        if (count < 3 || !number(fields[2], &gid)) continue;
        if (wanted && !found && !strcmp(fields[0], wanted)) {
            who->gid = gid;
            found = true;
        }
        if (user && *user && count > 3 && in_list(fields[3], user) && who->group_count < 64) who->groups[who->group_count++] = gid;
    }
    free(text);
    return found;
}

/* Reads `name`, `uid`, or either with `:group`. Returns 0, or ENOENT when the place knows no such user or group. */
int identity_find(const char *spec, struct identity *who)
{
    char name[256], user[64] = "", *group;
    uint32_t uid;
    memset(who, 0, sizeof *who);
    if (strlen(spec) >= sizeof name) return ENOENT;
    strcpy(name, spec);
    if ((group = strchr(name, ':'))) *group++ = 0;
    if (number(name, &uid)) {
        who->gid = uid;
        passwd_entry(NULL, uid, who, user);
        who->uid = uid;
    } else if (!passwd_entry(name, 0, who, user)) {
        if (strcmp(name, "root")) return ENOENT; /* an image without /etc/passwd still has its root */
        strcpy(who->home, "/root");
    }
    if (group && !number(group, &who->gid) && !groups(group, NULL, who)) return ENOENT;
    if (*user && !group) groups(NULL, user, who);
    return 0;
}

/* The place's own user: what the configuration names, else what the helper is, whose home is looked up only if it is asked for. */
int identity_default(struct identity *who, bool home)
{
    struct span value;
    char user[64] = "";
    if (tlv_find(g.config.whole, K_USER, &value)) {
        char *spec = span_text(value);
        int error = spec ? identity_find(spec, who) : EINVAL;
        free(spec);
        return error;
    }
    memset(who, 0, sizeof *who);
    if (home) passwd_entry(NULL, getuid(), who, user);
    who->uid = getuid();
    who->gid = getgid();
    return 0;
}
