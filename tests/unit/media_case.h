/* Samples with images and tensors, planned by the planner, kept token by token and element by
 * element: nothing here repeats the arithmetic of pruning, cutting or slicing.
 *
 * A case owns everything. Test threads only. */
#ifndef PD_TESTS_UNIT_MEDIA_CASE_H
#define PD_TESTS_UNIT_MEDIA_CASE_H

#include "packer/check.h"
#include "packer/layout.h"
#include "packer/planner.h"
#include "packer/slice.h"

#define MEDIA_SAMPLES 40
#define MEDIA_TOKENS_MAX 400
#define MEDIA_SPANS_MAX 6
#define MEDIA_PACKS_MAX 512
#define MEDIA_ELEMENTS_MAX 4096

/* Numbers of the case's tensors. */
enum {
    MEDIA_REWARD, /* token, input, f32 [2] */
    MEDIA_LOGP,   /* token, target, f32, a loss */
    MEDIA_PIXELS, /* ragged, patches, u8 [3], all views */
    MEDIA_BOX,    /* ragged, one per span of views 0 and 2, i32 [4] */
    MEDIA_JPEG,   /* ragged, runs per span of view 1, u8 */
    MEDIA_NOTES,  /* ragged, of the sample, u8 */
    MEDIA_ACTION, /* sample, f32 [4,2], a loss with pad mask */
    MEDIA_IS_PAD, /* sample, bool [4] */
    MEDIA_TENSORS
};

/* One element of a tensor and whose it is. */
struct media_element {
    int32_t token;       /* of a token tensor, else -1 */
    int32_t span, frame; /* of a tensor by spans, else -1; frame -1: the whole span's */
    uint8_t seed;        /* its bytes are seed, seed + 1, ... */
};

struct media_sample {
    uint32_t length;
    int32_t tokens[MEDIA_TOKENS_MAX];
    struct pd_span spans[MEDIA_SPANS_MAX];
    uint32_t span_count, of_spans[MEDIA_SPANS_MAX]; /* of MEDIA_JPEG */
    uint32_t runs[8], run_count;
    bool has_tensors;
    struct media_element *elements[MEDIA_TENSORS];
    uint32_t counts[MEDIA_TENSORS];
    struct pd_head head;
};

struct media_case {
    uint64_t random;
    struct pd_rules rules;
    struct pd_layout_rules layout;
    struct media_sample samples[MEDIA_SAMPLES];
    struct pd_head heads[MEDIA_SAMPLES];
    struct pd_pack packs[MEDIA_PACKS_MAX];
    uint32_t pack_count;
    struct pd_planner_stats stats;
    struct pd_prune_stats prune_stats;
    struct pd_media media;
    struct pd_tensor_spec specs[MEDIA_TENSORS];
    struct pd_slice slice;
    const struct pd_pack *rows[4]; /* of the batch built last */
    uint32_t row_count;
    struct pd_batch batch;
    uint8_t *payload;
};

uint32_t media_below(struct media_case *c, uint32_t bound);
/* Random samples and rules, planned to the end. */
struct media_case *media_case_new(uint64_t seed);
void media_case_free(struct media_case *c);
/* Plans anew; `restore`: the planner is saved and restored before every pack. */
void media_plan(struct media_case *c, bool restore);
/* Whether token `token` of the sample is left by the rule. */
bool media_kept(const struct media_sample *sample, struct pd_prune rule, uint32_t token);
/* The tokens of a segment as numbers of the sample's tokens; returns how many. */
uint32_t media_tokens(const struct media_case *c, const struct pd_segment *segment, uint32_t *out);
/* The elements of a segment, in order; returns how many. */
uint32_t media_elements(const struct media_case *c, const struct pd_segment *segment,
                        uint32_t tensor, const struct media_element **out);
/* Byte `i` of an element. Pad masks hold 0 and 1. */
uint8_t media_byte(uint32_t tensor, const struct media_element *element, uint64_t i);

struct pd_bodies media_bodies(struct media_case *c);
/* Lays out packs [first, first + rows) at c->payload. */
int media_build(struct media_case *c, uint32_t first, uint32_t rows, struct pd_error *error);
int media_check(struct media_case *c, bool with_plan, struct pd_check_finding *finding);

#endif
