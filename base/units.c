/* Parsing and printing of sizes and durations: whole numbers with a unit, every overflow caught. */
#include "base/units.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit size_units[] = {
    {"", 1},
    {"B", 1},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
    {"KB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {"TB", 1000000000000},
};

static const struct unit time_units[] = {
    {"ns", 1},
    {"us", 1000},
    {"ms", 1000000},
    {"s", 1000000000ull},
    {"m", 60000000000ull},
    {"h", 3600000000000ull},
};

/* The whole number at the front of text; *rest is what follows. False without digits or on
 * overflow. */
static bool parse_number(const char *text, uint64_t *value, const char **rest)
{
    *value = 0;
    const char *at = text;
    for (; isdigit((unsigned char)*at); at++) {
        if (__builtin_mul_overflow(*value, 10, value) ||
            __builtin_add_overflow(*value, (uint64_t)(*at - '0'), value))
            return false;
    }
    while (*at == ' ')
        at++;
    *rest = at;
    return at != text && isdigit((unsigned char)*text);
}

static bool apply_unit(const struct unit *units, size_t count, const char *name, uint64_t *value)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(units[i].name, name) == 0)
            return !__builtin_mul_overflow(*value, units[i].factor, value);
    }
    return false;
}

int pd_units_parse_bytes(const char *text, uint64_t *bytes, struct pd_error *error)
{
    const char *rest;
    if (parse_number(text, bytes, &rest) &&
        apply_unit(size_units, sizeof size_units / sizeof *size_units, rest, bytes))
        return 0;
    return pd_error_set(
        error, PD_EINVAL, "BAD_SIZE",
        "'%.40s' is not a size; expected a whole number with B, KiB, MiB, GiB, TiB, KB, "
        "MB, GB or TB, such as 16GiB",
        text);
}

int pd_units_parse_duration(const char *text, uint64_t *ns, struct pd_error *error)
{
    const char *rest;
    if (parse_number(text, ns, &rest)) {
        if (*ns == 0 && *rest == '\0')
            return 0;
        if (apply_unit(time_units, sizeof time_units / sizeof *time_units, rest, ns))
            return 0;
    }
    return pd_error_set(
        error, PD_EINVAL, "BAD_DURATION",
        "'%.40s' is not a duration; expected a whole number with ns, us, ms, s, m or h, "
        "such as 60s",
        text);
}

const char *pd_units_format_bytes(uint64_t bytes, char *buf, size_t size)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    unsigned unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit < 5) {
        value /= 1024;
        unit++;
    }
    snprintf(buf, size, unit == 0 || value >= 100 ? "%.0f%s" : "%.1f%s", value, names[unit]);
    return buf;
}

const char *pd_units_format_count(uint64_t count, char *buf, size_t size)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)count);
    size_t out = 0;
    for (int i = 0; i < length && out + 2 < size; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            buf[out++] = ',';
        buf[out++] = digits[i];
    }
    buf[out] = '\0';
    return buf;
}
