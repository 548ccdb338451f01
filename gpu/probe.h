/* The attention probe: does the mask that cu_seqlens describes let any token see a token it must
 * not?
 *
 * A varlen attention kernel is given zero logits, so that every allowed key weighs exactly 1, and
 * values that encode the *served* segment ids and positions; the mask comes from the *served*
 * cu_seqlens. Its unnormalised sums are small integers with a closed form (probe_code.h), so the
 * comparison is exact: one foreign, missing or misnumbered key shows. Every backend turns a batch
 * into one byte per token, the kinds of violation found there; this module checks what a kernel may
 * be given at all, and turns the bytes into places.
 *
 *   batch -> pd_probe_admit -> backend: kinds[T] -> pd_probe_report -> struct pd_probe_result
 *
 * Pure: no allocation, no state. Any thread. */
#ifndef PD_GPU_PROBE_H
#define PD_GPU_PROBE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Longest segment and widest row whose sums are exact in 32 bits: 255 * 2^20 < 2^31. */
#define PD_PROBE_WIDTH_MAX (1u << 20)
#define PD_PROBE_ROWS_MAX (1u << 23)
#define PD_PROBE_TOKENS_MAX 0x7fffffffu

/* One batch as served (DESIGN's batch contract); every pointer is borrowed for the call. T = rows *
 * width. Nothing in the arrays is trusted. */
struct pd_probe_batch {
    uint32_t rows, width;
    uint32_t segment_count;     /* S, padding segments included */
    const int32_t *segment_ids; /* [rows, width] */
    const int32_t *positions;   /* [rows, width], or NULL where the batch serves none of one
                                     dimension (M-RoPE): then derived from segment_ids */
    const int32_t *cu_seqlens;  /* [S+1] */
    const int32_t *seq_lens;    /* [S] real length of each segment, 0 for padding */
    const int32_t *logged_lens; /* [S] the same as the log has it, or NULL: not compared */
    bool causal;                /* false: full attention inside a segment; the causal mask is
                                     probed as well, since only its prefixes pin each position */
};

/* kind, bit, label (packd_validation_violations_total{check}); most telling first */
#define PD_PROBE_KINDS(X)                                                                         \
    X(PD_PROBE_BOUNDS, 0x01, "probe_bounds")       /* cu_seqlens leaves [0, T], runs backwards */ \
    X(PD_PROBE_UNCOVERED, 0x02, "probe_uncovered") /* lies in no segment of cu_seqlens */         \
    X(PD_PROBE_FOREIGN, 0x04, "probe_foreign")     /* sees a key of another segment or row */     \
    X(PD_PROBE_COUNT, 0x08, "probe_count")         /* sees too few or too many keys */            \
    X(PD_PROBE_POSITION, 0x10, "probe_position")   /* its keys' positions are not 0, 1, 2 ... */  \
    X(PD_PROBE_RANGE, 0x20, "probe_range")         /* id or position that no batch can hold */    \
    X(PD_PROBE_LENGTH, 0x40, "probe_length")       /* seq_lens disagrees with segment_ids */      \
    X(PD_PROBE_LOGGED, 0x80, "probe_logged")       /* seq_lens disagrees with the log */

enum pd_probe_kind {
#define X(name, bit, label) name = bit,
    PD_PROBE_KINDS(X)
#undef X
};
#define PD_PROBE_KIND_COUNT 8

/* "probe_foreign"; "probe_unknown" for anything but one bit. */
const char *pd_probe_kind_name(enum pd_probe_kind kind);

/* One token at which the batch is unsafe. */
struct pd_violation {
    uint32_t row, position;  /* the token: row of the batch, column in it */
    enum pd_probe_kind kind; /* the most telling one */
    uint32_t kinds;          /* all of them, or-ed */
    int32_t segment;         /* the token's own served segment id */
    int32_t foreign_row;     /* where the first foreign key it sees lies; -1 without one */
    int32_t foreign_segment; /* served segment id of that key; -1 without one */
};

#define PD_PROBE_VIOLATIONS_MAX 16

struct pd_probe_result {
    uint64_t violation_count;                  /* tokens with at least one; 0 = the batch is safe */
    uint64_t kind_counts[PD_PROBE_KIND_COUNT]; /* tokens per kind, in the order of PD_PROBE_KINDS */
    uint32_t listed;                           /* violations below, in token order */
    struct pd_violation violations[PD_PROBE_VIOLATIONS_MAX];
};

/* Whether a kernel may run on it. Marks PD_PROBE_BOUNDS in kinds[T] and sets *admitted to false
 * where cu_seqlens would take a kernel out of the arrays; that is a violation, not an error.
 * PD_EINVAL: a NULL array, rows, width or segment_count of 0. PD_ELIMIT: wider than
 * PD_PROBE_WIDTH_MAX, more rows than PD_PROBE_ROWS_MAX, T >= 2^31. */
int pd_probe_admit(const struct pd_probe_batch *batch, uint8_t *kinds, bool *admitted,
                   struct pd_error *error) PD_MUST_CHECK;

/* Or-s PD_PROBE_LENGTH and PD_PROBE_LOGGED into kinds[T], at the first token of each segment whose
 * length is wrong. Needs an admitted batch. O(S). */
void pd_probe_check_lengths(const struct pd_probe_batch *batch, uint8_t *kinds);

/* Keys of segment i under a full mask: its real length; all of a padding segment. Never more than
 * the segment holds. Needs an admitted batch. */
int32_t pd_probe_used_of(const struct pd_probe_batch *batch, uint32_t i);

/* positions[T] from segment_ids: the place in the run of one id; a gap goes on counting, padding
 * starts where cu_seqlens starts it. Needs an admitted batch. */
void pd_probe_derive_positions(const struct pd_probe_batch *batch, int32_t *positions);

/* The verdict: counts, and the first PD_PROBE_VIOLATIONS_MAX tokens with their foreign keys. */
void pd_probe_report(const struct pd_probe_batch *batch, const uint8_t *kinds,
                     struct pd_probe_result *result);

/* Or-s into kinds[T] what the CPU finds; `positions` replaces batch->positions. Exact running sums
 * over every segment of cu_seqlens, O(T) (probe_cpu.c says why that is the attention's own result).
 * Needs an admitted batch. */
void pd_probe_cpu(const struct pd_probe_batch *batch, const int32_t *positions, uint8_t *kinds);

#ifdef __cplusplus
}
#endif

#endif
