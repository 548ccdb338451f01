/* Batches for the self-test and the tests: random valid ones, and the faults that must be found
 * in them.
 *
 * Everything follows from a seed. The faults are the ways in which packing goes wrong in
 * practice; each says which rule it breaks. Pure; the caller owns the memory. */
#ifndef PD_GPU_PROBE_CASES_H
#define PD_GPU_PROBE_CASES_H

#include "gpu/probe.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PD_CASE_TOKENS_MAX 8192

/* A batch with room of its own; `batch` points into it, so it must not be moved. */
struct pd_case {
    struct pd_probe_batch batch;
    int32_t segment_ids[PD_CASE_TOKENS_MAX], positions[PD_CASE_TOKENS_MAX];
    int32_t cu_seqlens[PD_CASE_TOKENS_MAX + 1];
    int32_t seq_lens[PD_CASE_TOKENS_MAX], logged_lens[PD_CASE_TOKENS_MAX];
};

struct pd_case_rules {
    uint32_t rows, width; /* rows * width <= PD_CASE_TOKENS_MAX, width a multiple of seg_align */
    uint32_t seg_align;   /* slots are multiples of it: gaps */
    uint32_t pad_segment; /* longest padding segment */
    uint32_t length_max;  /* longest real segment */
    bool causal;
    bool logged; /* with logged_lens */
};

/* A generator of random numbers, the same everywhere. */
uint64_t pd_case_random(uint64_t *state);

/* Rules for a random batch of at most tokens_max (>= 4) tokens: one to four rows, often with
 * gaps, short tails and whole rows of padding. */
struct pd_case_rules pd_case_rules_random(uint64_t *state, uint32_t tokens_max);
/* Fills the case with a valid batch. */
void pd_case_make(struct pd_case *made, const struct pd_case_rules *rules, uint64_t *state);

/* name, text, the kind that at least one token must show */
#define PD_FAULTS(X)                                                                      \
    X(PD_FAULT_BOUNDARY, "boundary off by one", PD_PROBE_FOREIGN | PD_PROBE_COUNT)        \
    X(PD_FAULT_MERGED, "two segments merged", PD_PROBE_FOREIGN)                           \
    X(PD_FAULT_SHORT_CU, "cu_seqlens one token short", PD_PROBE_UNCOVERED)                \
    X(PD_FAULT_LATE_CU, "cu_seqlens starts one token late", PD_PROBE_UNCOVERED)           \
    X(PD_FAULT_UNRESET, "positions run on into a segment", PD_PROBE_COUNT)                \
    X(PD_FAULT_SWAPPED, "two positions swapped", PD_PROBE_POSITION | PD_PROBE_RANGE)      \
    X(PD_FAULT_ONE_SEQUENCE, "a row treated as one sequence", PD_PROBE_FOREIGN)           \
    X(PD_FAULT_ROW_START, "the start of a row missing from cu_seqlens", PD_PROBE_FOREIGN) \
    X(PD_FAULT_PAD_JOINED, "padding joined to a segment", PD_PROBE_FOREIGN)               \
    X(PD_FAULT_SPLIT, "a boundary inside a segment", PD_PROBE_COUNT)                      \
    X(PD_FAULT_SEGMENT_ID, "one token with another segment's id", PD_PROBE_FOREIGN)       \
    X(PD_FAULT_BACKWARDS, "cu_seqlens runs backwards", PD_PROBE_BOUNDS)                   \
    X(PD_FAULT_OUTSIDE, "cu_seqlens past the batch", PD_PROBE_BOUNDS)                     \
    X(PD_FAULT_SEQ_LEN, "seq_lens one token short", PD_PROBE_LENGTH)                      \
    X(PD_FAULT_ALL_WRONG, "a length wrong in all arrays alike", PD_PROBE_LOGGED)

enum pd_fault {
#define X(name, text, kinds) name,
    PD_FAULTS(X)
#undef X
        PD_FAULT_COUNT
};

const char *pd_fault_name(enum pd_fault fault);
/* Kinds of which the probe must report one. */
uint32_t pd_fault_kinds(enum pd_fault fault);

/* Puts the fault into a valid case, at a random place. False: this batch has no place for it (a
 * merge needs two segments in a row) and is unchanged. */
bool pd_case_plant(struct pd_case *made, enum pd_fault fault, uint64_t *state);

#ifdef __cplusplus
}
#endif

#endif
