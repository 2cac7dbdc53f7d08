/* What this program needs of text and numbers, in place of the C library's own, which knows far more: its snprintf (here %s %d %u %llu %c
 * %%) brings 40 kB of floating point with it, its numbers read streams, and its strstr is made for texts without end. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "helper.h"

struct text { char *at; size_t room, want; };

static void add(struct text *t, char c)
{
    if (t->want + 1 < t->room) t->at[t->want] = c;
    t->want++;
}

static void add_number(struct text *t, unsigned long long value, bool negative)
{
    char digits[24], *end = digits + sizeof digits, *p = end;
    do *--p = (char)('0' + value % 10);
    while (value /= 10);
    if (negative) *--p = '-';
    while (p < end) add(t, *p++);
}

int vsnprintf(char *to, size_t room, const char *format, va_list arguments)
{
    struct text t = {to, room, 0};
    for (; *format; format++) {
        if (*format != '%') {
            add(&t, *format);
            continue;
        }
        int longs = 0;
        while (*++format == 'l' || *format == 'z') longs++;
        if (*format == 's') {
            for (const char *s = va_arg(arguments, const char *); *s; s++) add(&t, *s);
        } else if (*format == 'd') {
            long long v = longs > 1 ? va_arg(arguments, long long) : longs ? va_arg(arguments, long) : va_arg(arguments, int);
            add_number(&t, v < 0 ? -(unsigned long long)v : (unsigned long long)v, v < 0);
        } else if (*format == 'u') {
            unsigned long long v = longs > 1 ? va_arg(arguments, unsigned long long)
                : longs ? va_arg(arguments, unsigned long) : va_arg(arguments, unsigned);
            add_number(&t, v, false);
        } else if (*format == 'c') {
            add(&t, (char)va_arg(arguments, int));
        } else if (*format) {
            add(&t, *format);
        } else {
            break;
        }
    }
    if (room) to[t.want < room ? t.want : room - 1] = 0;
    return (int)t.want;
}

int snprintf(char *to, size_t room, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int want = vsnprintf(to, room, format, arguments);
    va_end(arguments);
    return want;
}

/* Bases up to ten. What does not fit is the largest number. */
unsigned long long strtoull(const char *text, char **end, int base)
{
    unsigned long long value = 0, digit, most = ~0ULL, wide = (unsigned)base;
    while (*text == ' ' || *text == '\t') text++;
    for (; (digit = (unsigned long long)*text - '0') < wide; text++) value = value > (most - digit) / wide ? most : value * wide + digit;
    if (end) *end = (char *)(uintptr_t)text;
    return value;
}

unsigned long strtoul(const char *text, char **end, int base) { return (unsigned long)strtoull(text, end, base); }

char *strstr(const char *text, const char *wanted)
{
    for (size_t len = strlen(wanted); *text || !len; text++)
        if (!strncmp(text, wanted, len)) return (char *)(uintptr_t)text;
    return NULL;
}
