/* The table of configuration keys: one row a key, from which the parser, the environment, the
 * printer, the sample file and docs/CONFIGURATION.md are made. Private to server/config*.c.
 *
 *   scope     base object               rows
 *   top       struct pd_config          listen, http, log.*, memory.*, ..., feeds
 *   feed      struct pd_feed_config     one entry of feeds
 *   source    struct pd_source_config   one value of sources
 *   job       struct pd_job_config      one entry of jobs
 *   principal struct pd_principal_config one entry of auth
 *
 * A path with a dot ("log.max_bytes") is a key in a mapping of the same scope. Main thread at
 * start. */
#ifndef PD_SERVER_CONFIG_KEYS_H
#define PD_SERVER_CONFIG_KEYS_H

#include "server/config.h"

#include <stddef.h>

enum pd_key_kind {
    /* one value each */
    PD_KEY_NUMBER, /* unsigned, of the member's size */
    PD_KEY_SIGNED, /* int32_t */
    PD_KEY_BYTES,
    PD_KEY_DURATION,
    PD_KEY_RATIO,  /* double, 0 to 1 */
    PD_KEY_CHOICE, /* index into choices, of the member's size */
    PD_KEY_WORD,   /* one of choices, as text in a char array */
    PD_KEY_NAME,   /* base/name.h, in a char array */
    PD_KEY_STRING, /* on the heap, never empty */
    PD_KEY_FILE,   /* on the heap, may be empty: none */
    /* made of several; the parser has a function for each */
    PD_KEY_LISTEN, /* a char ** and the uint32_t count behind it, min to PD_LISTEN_MAX */
    PD_KEY_NAMES,  /* a char (*)[PD_NAME_MAX + 1] and the uint32_t count behind it, at most max */
    PD_KEY_ROLES,  /* a uint32_t of enum pd_role */
    PD_KEY_AUTH,
    PD_KEY_SOURCES,
    PD_KEY_NUMBERS, /* a uint32_t array of the member's size, the count in the uint32_t behind it */
    PD_KEY_VIEWS,
    PD_KEY_FRAMES,
    PD_KEY_JOBS,
    PD_KEY_FEEDS,
};

struct pd_key {
    const char *path;
    enum pd_key_kind kind;
    bool shapes_batches;             /* part of pd_feed_config_digest */
    size_t offset_bytes, size_bytes; /* of the member */
    uint64_t min, max;               /* of numbers, sizes and durations */
    const char *const *choices;      /* NULL-terminated; NULL where any value goes */
    const char *fallback;            /* the default, in the words of the file */
    const char *help;                /* one sentence */
};

struct pd_key_table {
    const struct pd_key *keys;
    size_t count;
};

extern const struct pd_key_table pd_top_keys, pd_feed_keys, pd_source_keys, pd_job_keys,
    pd_principal_keys;

/* The words of `roles`, in the order of the bits of enum pd_role; NULL-terminated. */
extern const char *const pd_role_words[];

/* True for the kinds that are one value. */
bool pd_key_is_scalar(const struct pd_key *key);
/* Parses `text` into the key's member of *base. PD_EINVAL: what was found and what is expected,
 * without the place (the caller puts that before); PD_ENOMEM. */
int pd_key_set(const struct pd_key *key, void *base, const char *text,
               struct pd_error *error) PD_MUST_CHECK;
/* The key's value in the words of the file, as pd_key_set takes it; scalars only. */
void pd_key_text(const struct pd_key *key, const void *base, char *text, size_t size);
/* The items of a PD_KEY_LISTEN, PD_KEY_NAMES or PD_KEY_NUMBERS key. */
char *const *pd_key_addresses(const struct pd_key *key, const void *base, uint32_t *count);
const char (*pd_key_names(const struct pd_key *key, const void *base,
                          uint32_t *count))[PD_NAME_MAX + 1];
/* Replaces the addresses by copies. PD_ENOMEM. */
int pd_key_set_addresses(const struct pd_key *key, void *base, char *const *addresses,
                         uint32_t count) PD_MUST_CHECK;
const uint32_t *pd_key_numbers(const struct pd_key *key, const void *base, uint32_t *count);
/* Sets every scalar of *base (zeroed memory) to its default. PD_ENOMEM. */
int pd_keys_default(const struct pd_key_table *table, void *base) PD_MUST_CHECK;
/* "whole number from 1 to 64", "exact | sequential | none", for errors and the reference. */
void pd_key_expectation(const struct pd_key *key, char *text, size_t size);

/* Puts one feed with the defaults into *feed, nothing derived yet. PD_ENOMEM. */
int pd_feed_default(struct pd_feed_config *feed) PD_MUST_CHECK;
void pd_feed_fini(struct pd_feed_config *feed);
/* Fills what follows from other fields: the layout's copies of the planner's keys, lanes,
 * streams_to_end. */
void pd_feed_derive(struct pd_feed_config *feed);

/* Fills max_sample_bytes. */
void pd_config_derive(struct pd_config *config);
/* The candidate that `word` was probably meant to be, or NULL: at most two edits away, and fewer
 * than half its letters. */
const char *pd_nearest(const char *word, const char *const *candidates, size_t count);

#endif
