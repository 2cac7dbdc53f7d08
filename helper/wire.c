/* Frames and their fields: u32 length, u8 type, u32 stream, payload; a payload's fields are u16 key, u32 length, bytes. */
#include <stdlib.h>
#include <unistd.h>

#include "helper.h"

/* Room for `want` more bytes at the end, or NULL. Callers bound what they ask for, so a buffer stays bounded too. */
uint8_t *buf_room(struct buf *b, size_t want)
{
    if (b->off && b->off == b->len) b->off = b->len = 0;
    if (b->cap - b->len < want && b->off) {
        memmove(b->data, b->data + b->off, b->len - b->off);
        b->len -= b->off;
        b->off = 0;
    }
    if (b->cap - b->len < want) {
        size_t cap = b->cap ? b->cap : 4096;
        while (cap - b->len < want) cap *= 2;
        uint8_t *data = realloc(b->data, cap);
        if (!data) return NULL;
        b->data = data;
        b->cap = cap;
    }
    return b->data + b->len;
}

void buf_take(struct buf *b, size_t count)
{
    b->off += count;
    if (b->off == b->len) b->off = b->len = 0;
}

/* Gives up the memory of a buffer that is empty and was large once: what streams through it would otherwise have it mapped anew each time. */
void buf_shrink(struct buf *b, size_t most)
{
    if (b->off == b->len && b->cap > most) buf_free(b);
}

void buf_free(struct buf *b)
{
    if (b->data) explicit_bzero(b->data, b->cap);
    free(b->data);
    memset(b, 0, sizeof *b);
}

uint32_t get32(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }
uint64_t get64(const uint8_t *p) { return get32(p) | (uint64_t)get32(p + 4) << 32; }

void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (8 * i));
}

void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

bool tlv_next(struct span *rest, uint16_t *key, struct span *value)
{
    if (rest->len < 6) return false;
    uint32_t len = get32(rest->data + 2);
    if (len > rest->len - 6) return false;
    *key = (uint16_t)(rest->data[0] | rest->data[1] << 8);
    *value = (struct span){rest->data + 6, len};
    rest->data += 6 + len;
    rest->len -= 6 + len;
    return true;
}

bool tlv_valid(struct span payload)
{
    uint16_t key;
    struct span value;
    while (payload.len)
        if (!tlv_next(&payload, &key, &value)) return false;
    return true;
}

bool tlv_find(struct span payload, uint16_t wanted, struct span *value)
{
    uint16_t key;
    while (tlv_next(&payload, &key, value))
        if (key == wanted) return true;
    return false;
}

uint64_t tlv_u64(struct span payload, uint16_t key, uint64_t otherwise)
{
    struct span value;
    return tlv_find(payload, key, &value) && value.len == 8 ? get64(value.data) : otherwise;
}

/* A text of its own, or NULL if it can't be one: a zero byte inside would silently cut it. */
char *span_text(struct span value)
{
    if (memchr(value.data, 0, value.len)) return NULL;
    char *text = malloc(value.len + 1);
    if (!text) return NULL;
    memcpy(text, value.data, value.len);
    text[value.len] = 0;
    return text;
}

/* Puts a frame's head down and returns where its payload goes, or NULL when memory is out. */
uint8_t *frame_put(struct buf *b, uint8_t type, uint32_t stream, size_t payload)
{
    uint8_t *p = buf_room(b, 9 + payload);
    if (!p) return NULL;
    put32(p, (uint32_t)(5 + payload));
    p[4] = type;
    put32(p + 5, stream);
    b->len += 9 + payload;
    return p + 9;
}

void conn_send(struct conn *c, uint8_t type, uint32_t stream, const void *payload, size_t len)
{
    uint8_t *p = c->dead ? NULL : frame_put(&c->out, type, stream, len);
    if (p && len) memcpy(p, payload, len);
    if (!p) c->closing = true;
}

/* In constant time for equal lengths: a token must not be guessable byte by byte. */
bool same_bytes(struct span a, struct span b)
{
    volatile uint8_t differs = a.len != b.len;
    for (size_t i = 0; i < a.len && i < b.len; i++) differs |= a.data[i] ^ b.data[i];
    return !differs;
}

bool write_all(int fd, const void *data, size_t len)
{
    const uint8_t *p = data;
    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

bool read_all(int fd, void *data, size_t len)
{
    uint8_t *p = data;
    while (len) {
        ssize_t n = read(fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}
