/* The door: from a decoded BlockHead and the pieces of its body to a block the log can take.
 *
 *   BlockHead ──pd_door_check──> may its body come?      (the block refused: the call ends)
 *   head + pieces ──pd_door_make──> block->head + rejects (samples refused: they keep their seq)
 *
 * Everything here came from the wire and is distrusted. The body is read where it lies and not
 * copied: once for its digests and token range, its tokens once more beside the labels and where
 * placeholders are checked. Pure but for malloc, any thread. */
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
/* What a token of a span may stand for where patches_max is 0 and no tensor of unit PATCH carries
 * the span's patches. By it a pack's vision_cu_seqlens takes at most 256 bytes a position, and
 * batches of up to 524,288 positions stay within int32 offsets, however packs are made. */
#define PD_DOOR_TOKEN_PATCHES_MAX 4096
#define PD_DOOR_TOKEN_FRAMES_MAX 64

struct pd_door_rules {
    uint32_t seq_len;
    bool reject_over_length;   /* over_length: reject */
    bool split_over_length;    /* over_length: split */
    uint32_t vocab_size;       /* 0 = only negative tokens are refused */
    uint64_t sample_bytes_max; /* tokens, labels and tensors of one sample */
    uint64_t block_bytes_max;  /* body of one block */
    uint32_t block_samples_max;
    bool check_shifted;   /* refuse labels that look shifted */
    uint32_t patches_max; /* of a pack; 0 = no cap, but that of a span's tokens */
    bool mrope;           /* positions: mrope: every span has a grid */
    /* Tokens that stand in spans and nowhere else; count 0 = not checked. Borrowed. */
    const uint32_t *media_tokens;
    uint32_t media_token_count;
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
    X(BAD_SPAN)            \
    X(SPAN_GRID)           \
    X(BAD_RAGGED)          \
    X(BAD_VALUE)           \
    X(KEY_TOO_LONG)

enum pd_door_reason {
    PD_DOOR_OK,
#define X(name) PD_DOOR_##name,
    PD_DOOR_REASONS(X)
#undef X
};

/* Which rule of its reason a sample broke, where a reason has several. */
enum pd_door_detail {
    PD_DOOR_DETAIL_NONE,
    PD_DOOR_SAMPLE_PATCHES, /* TOO_LARGE */
    PD_DOOR_SPAN_PATCHES,   /* TOO_LARGE */
    PD_DOOR_CLAIM_PATCHES,  /* TOO_LARGE */
    PD_DOOR_CLAIM_FRAMES,   /* TOO_LARGE */
    PD_DOOR_SPAN_TOO_LONG,  /* OVER_LENGTH */
    PD_DOOR_RAGGED_COUNT,   /* BAD_RAGGED */
    PD_DOOR_RAGGED_VIEW,
    PD_DOOR_SPAN_VIEW, /* BAD_SPAN */
    PD_DOOR_SPAN_EMPTY,
    PD_DOOR_SPAN_ORDER,
    PD_DOOR_SPAN_END,
    PD_DOOR_SPAN_STRAY,
    PD_DOOR_SPAN_FOREIGN,
    PD_DOOR_GRID_MISSING, /* SPAN_GRID, to the last */
    PD_DOOR_GRID_PRODUCT,
    PD_DOOR_GRID_MERGE,
    PD_DOOR_GRID_SIDE,
    PD_DOOR_GRID_TOKENS,
    PD_DOOR_GRID_T_SCALE,
    PD_DOOR_GRID_FAR,
};

/* `count` samples from `index` on, refused for one reason; the rest belongs to the first. */
struct pd_door_reject {
    uint32_t index, count;
    uint32_t reason; /* enum pd_door_reason */
    uint8_t detail;  /* enum pd_door_detail */
    uint8_t tensor;  /* its place in the block's table: BAD_RAGGED, BAD_VALUE */
    uint32_t at;     /* which token, run, span or scalar */
    int64_t found, expected;
};

struct pd_door_rejects {
    struct pd_door_reject *items; /* ascending by index, owned */
    uint32_t count;
    uint32_t samples;               /* sum of the counts */
    struct pd_tensor_spec *tensors; /* of the block, for the texts; owned; NULL: none */
};

const char *pd_door_reason_name(enum pd_door_reason reason);
/* For people: what was found and what was expected. Returns text. */
const char *pd_door_reject_text(const struct pd_door_rejects *rejects,
                                const struct pd_door_reject *reject,
                                const struct pd_door_rules *rules, char *text, size_t size);
void pd_door_rejects_fini(struct pd_door_rejects *rejects);

/* What a head says about its block as a whole. PD_EINVAL COLUMN_SIZE, LENGTH_MISMATCH (lengths and
 * tensors against body_bytes, both named), MALFORMED (no sample), BAD_RANGE (seq overflows, merge
 * is no square), BAD_NAME, RESERVED_NAME, BAD_TENSOR; PD_ELIMIT BLOCK_TOO_LARGE, TOO_MANY_VIEWS,
 * TOO_MANY_TENSORS. */
int pd_door_check(const Packd__V1__BlockHead *wire, const struct pd_door_rules *rules,
                  struct pd_error *error) PD_MUST_CHECK;

/* Makes block->head and block->views of a block that pd_door_check let pass and whose pieces are
 * there: exactly wire->body_bytes. feed, lane, stream, source and position stay 0 for the caller;
 * views and tensors have the block's own numbers. block->head is to be given to pd_block_head_fini,
 * `rejects` to pd_door_rejects_fini. PD_ENOMEM. */
int pd_door_make(const Packd__V1__BlockHead *wire, const struct pd_door_rules *rules,
                 struct pd_block *block, struct pd_door_rejects *rejects,
                 struct pd_error *error) PD_MUST_CHECK;

#endif
