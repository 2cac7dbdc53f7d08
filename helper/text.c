/* snprintf as far as this program needs it: %s %d %u %llu %c %%. The C library's own brings 40 kB of floating point with it. */
#include <stdarg.h>
#include <stdio.h>

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
