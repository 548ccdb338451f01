/* Cases for tests of the layout and the check: rules, packs and the samples behind them, random or
 * by hand.
 *
 * A case owns everything. Test threads only. */
#ifndef PD_TESTS_UNIT_LAYOUT_CASE_H
#define PD_TESTS_UNIT_LAYOUT_CASE_H

#include "packer/check.h"
#include "packer/layout.h"
#include "tests/unit/random.h"

#define CASE_ROWS_MAX 8
#define CASE_SAMPLES_MAX 4096

/* A sample as pushed. `on` says per token whether it is a target; runs say the same. */
struct case_sample {
    uint32_t length;
    float weight;
    bool has_labels;
    int32_t *tokens, *labels;
    bool *on;
    uint32_t *runs;
    uint32_t run_count;
};

struct layout_case {
    struct pd_layout_rules rules;
    uint32_t row_count, width;
    struct pd_pack packs[CASE_ROWS_MAX];
    const struct pd_pack *rows[CASE_ROWS_MAX];    /* NULL or into packs */
    struct case_sample samples[CASE_SAMPLES_MAX]; /* a segment's seq is its sample's index */
    uint32_t sample_count;
    struct pd_batch batch;
    void *payload;  /* 64-byte aligned, of batch.payload_bytes */
    int body_error; /* returned by the bodies in place of bytes, where not 0 */
};

struct layout_case *case_new(void);
void case_free(struct layout_case *c);

/* Adds a sample whose token i is first + i; runs NULL = all targets, labels NULL = none pushed.
 * Returns its index. */
uint32_t case_sample(struct layout_case *c, uint32_t length, int32_t first, float weight,
                     const int32_t *labels, const uint32_t *runs, uint32_t run_count);
/* Puts tokens [offset, offset + length) of the sample at the end of a row. */
void case_put(struct layout_case *c, uint32_t row, uint32_t sample, uint32_t offset,
              uint32_t length, uint32_t part, uint32_t part_count);

/* Random rules and packs; every feature of the layout comes up. */
void case_randomise(struct layout_case *c, uint64_t *state);
/* Takes labels and runs away from every sample: what a reader of the core arrays can rebuild. */
void case_make_plain(struct layout_case *c);
/* Measures and fills; what the layout returned. The width is c->width, or pd_layout_width of the
 * widest row where that is 0. */
int case_build(struct layout_case *c, struct pd_error *error);
struct pd_bodies case_bodies(struct layout_case *c);
/* What the built batch was made of; borrows all of it. */
struct pd_layout_input case_input(const struct layout_case *c, const struct pd_bodies *bodies);
/* What a check of it needs. */
static inline struct pd_check_input case_check_input(const struct layout_case *c, bool with_plan)
{
    return (struct pd_check_input){.rules = &c->rules,
                                   .batch = &c->batch,
                                   .payload = c->payload,
                                   .rows = with_plan ? c->rows : NULL};
}

/* A view of an array of the built batch. */
void *case_array(const struct layout_case *c, const char *name);

#endif
