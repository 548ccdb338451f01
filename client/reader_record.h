/* One JSON object becomes one sample. Which fields make its tokens is decided by the first record
 * and kept. Pure but for memory; one thread. */
#ifndef PD_CLIENT_READER_RECORD_H
#define PD_CLIENT_READER_RECORD_H

#include "base/bytes.h"
#include "client/include/packd.h"

#include <jansson.h>

#define PD_RECORD_FIELDS_MAX 32
#define PD_RECORD_NAME_MAX 128
#define PD_RECORD_SPANS_MAX 256

struct pd_record {
    char names[PD_RECORD_FIELDS_MAX][PD_RECORD_NAME_MAX];
    unsigned name_count;                            /* 0: not decided yet */
    bool explicit_names;                            /* given by the user: all must be there */
    bool is_tokens;                                 /* names[0] holds token ids */
    char shown[256];                                /* names for people */
    struct pd_buf tokens, labels, mask, key, group; /* of the record at hand */
    struct packd_span spans[PD_RECORD_SPANS_MAX];
    char views[PD_RECORD_SPANS_MAX][PD_RECORD_NAME_MAX];
};

/* Zeroed memory is a reader that decides by itself; `field` (comma separated, NULL allowed) fixes
 * the names. PACKD_EINVAL: an empty name, or too many. */
int pd_record_init(struct pd_record *record, const char *field, struct packd_error *error);
void pd_record_fini(struct pd_record *record);
/* 1: *sample is filled, borrowed until the next call; 0: the record has no tokens; PACKD_EINVAL
 * (BAD_RECORD): the text says what was found and expected; PACKD_ENOMEM. */
int pd_record_take(struct pd_record *record, const json_t *object, struct packd_sample *sample,
                   struct packd_error *error);
/* The same from the text of one object. */
int pd_record_parse(struct pd_record *record, const char *text, size_t bytes,
                    struct packd_sample *sample, struct packd_error *error);

#endif
