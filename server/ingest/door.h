/* The door: from a decoded BlockHead and the pieces of its body to a block the log can take.
 *
 *   BlockHead ──pd_door_check──> may its body come?          (the block refused: the call ends)
 *   head + pieces ──pd_door_make──> pd_block_head + rejects  (samples refused: they keep their seq)
 *
 * Everything here came from the wire and is distrusted. The body is read where it lies and not
 * copied: once for its digests and token range, its tokens once more beside the labels. Pure but
 * for malloc, any thread.
 *
 * Not stored by this version: spans and named tensors. A head that carries them is refused with
 * PD_EUNSUPPORTED. */
#ifndef PD_SERVER_INGEST_DOOR_H
#define PD_SERVER_INGEST_DOOR_H

#include "base/err.h"
#include "proto/packd.pb-c.h"
#include "server/block.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Longest key and group, in bytes. */
#define PD_DOOR_KEY_MAX 255
/* With fewer targets than this in a sample, equal labels and next tokens may be chance. */
#define PD_DOOR_SHIFTED_MIN 15

struct pd_door_rules {
    uint32_t seq_len;
    bool reject_over_length;   /* over_length: reject */
    uint32_t vocab_size;       /* 0 = only negative tokens are refused */
    uint64_t sample_bytes_max; /* tokens and labels of one sample */
    uint64_t block_bytes_max;  /* body of one block */
    uint32_t block_samples_max;
    bool check_shifted; /* refuse labels that look shifted */
};

/* name = the reason on the wire */
#define PD_DOOR_REASONS(X) \
    X(EMPTY_SAMPLE)        \
    X(OVER_LENGTH)         \
    X(TOO_LARGE)           \
    X(TOKEN_OUT_OF_VOCAB)  \
    X(LABEL_OUT_OF_RANGE)  \
    X(LABELS_LOOK_SHIFTED) \
    X(BAD_MASK)            \
    X(BAD_WEIGHT)          \
    X(KEY_TOO_LONG)

enum pd_door_reason {
    PD_DOOR_OK,
#define X(name) PD_DOOR_##name,
    PD_DOOR_REASONS(X)
#undef X
};

/* `count` samples from `index` on, refused for one reason; at and found belong to the first: which
 * token (or run), and what was there. */
struct pd_door_reject {
    uint32_t index, count;
    uint32_t reason; /* enum pd_door_reason */
    uint32_t at;
    int64_t found;
};

struct pd_door_rejects {
    struct pd_door_reject *items; /* ascending by index, owned */
    uint32_t count;
    uint32_t samples; /* sum of the counts */
};

const char *pd_door_reason_name(enum pd_door_reason reason);
/* For people: what was found and what was expected. Returns text. */
const char *pd_door_reject_text(const struct pd_door_reject *reject,
                                const struct pd_door_rules *rules, char *text, size_t size);
void pd_door_rejects_fini(struct pd_door_rejects *rejects);

/* What a head says about its block as a whole. PD_EINVAL COLUMN_SIZE, LENGTH_MISMATCH (lengths
 * against body_bytes, both named), MALFORMED (no sample), BAD_RANGE (seq overflows); PD_ELIMIT
 * BLOCK_TOO_LARGE; PD_EUNSUPPORTED UNSUPPORTED (spans, tensors). */
int pd_door_check(const Packd__V1__BlockHead *wire, const struct pd_door_rules *rules,
                  struct pd_error *error) PD_MUST_CHECK;

/* Makes the log's head of a block that pd_door_check let pass; the pieces hold exactly
 * wire->body_bytes. feed, lane, stream, source and position stay 0 for the caller. `head` is to be
 * given to pd_block_head_fini, `rejects` to pd_door_rejects_fini. PD_ENOMEM. */
int pd_door_make(const Packd__V1__BlockHead *wire, const struct pd_door_rules *rules,
                 const struct pd_piece *pieces, uint32_t piece_count, struct pd_block_head *head,
                 struct pd_door_rejects *rejects, struct pd_error *error) PD_MUST_CHECK;

#endif
