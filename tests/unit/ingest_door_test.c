/* The door against a model that reads the flattened body token by token, and each of its refusals
 * by hand. */
#include "packer/batch.h"
#include "server/ingest/door.h"
#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define SAMPLES_MAX 40
#define TOKENS_MAX 4000

static uint64_t seed;

static uint32_t below(uint32_t bound)
{
    return test_below(&seed, bound);
}

/* A block as a producer would make it. */
struct pushed {
    Packd__V1__BlockHead head;
    uint32_t lengths[SAMPLES_MAX];
    uint32_t mask_counts[SAMPLES_MAX], mask_runs[TOKENS_MAX * 2];
    float weights[SAMPLES_MAX];
    uint64_t versions[SAMPLES_MAX];
    ProtobufCBinaryData keys[SAMPLES_MAX];
    int32_t body[TOKENS_MAX * 2]; /* tokens, then labels */
    uint32_t tokens;
};

static const struct pd_door_rules rules = {.seq_len = 200,
                                           .reject_over_length = true,
                                           .vocab_size = 1000,
                                           .sample_bytes_max = 1 << 20,
                                           .block_bytes_max = 1 << 24,
                                           .block_samples_max = SAMPLES_MAX,
                                           .check_shifted = true};

static void pushed_init(struct pushed *p)
{
    memset(p, 0, sizeof(*p));
    packd__v1__block_head__init(&p->head);
    p->head.lengths = p->lengths;
}

/* Adds a sample of tokens 1, 2, 3, ... */
static int32_t *pushed_add(struct pushed *p, uint32_t length)
{
    int32_t *at = p->body + p->tokens;

    p->lengths[p->head.n_lengths++] = length;
    for (uint32_t i = 0; i < length; i++)
        at[i] = (int32_t)(1 + i % 900);
    p->tokens += length;
    return at;
}

/* To be called when all tokens are there; labels start as a copy of the tokens. */
static int32_t *pushed_labels(struct pushed *p)
{
    int32_t *labels = p->body + p->tokens;

    p->head.has_labels = true;
    memcpy(labels, p->body, p->tokens * 4);
    return labels;
}

/* What the door made of it, from pieces that are allocated one by one. */
struct made {
    struct pd_block_head head;
    struct pd_door_rejects rejects;
    struct pd_error error;
};

static void make(struct pushed *p, struct made *made, uint32_t piece_max)
{
    size_t size = (size_t)p->tokens * 4 * (p->head.has_labels ? 2 : 1);
    struct pd_piece *pieces = calloc(size + 1, sizeof(*pieces));
    uint32_t count = 0;

    p->head.body_bytes = size;
    for (size_t at = 0; at < size;) {
        size_t step = 1 + below(piece_max);
        step = step > size - at ? size - at : step;
        uint8_t *copy = malloc(step);
        assert_non_null(copy);
        memcpy(copy, (const uint8_t *)p->body + at, step);
        pieces[count++] = (struct pd_piece){.data = copy, .size_bytes = step};
        at += step;
    }
    memset(made, 0, sizeof(*made));
    int rc = pd_door_check(&p->head, &rules, &made->error);
    if (rc != 0)
        fail_msg("refused: %s", made->error.text);
    struct pd_block block = {.pieces = pieces, .piece_count = count};
    assert_int_equal(pd_door_make(&p->head, &rules, &block, &made->rejects, &made->error), 0);
    made->head = block.head;
    assert_int_equal(pd_block_head_check(&made->head, &made->error), 0);
    for (uint32_t i = 0; i < count; i++)
        free((void *)(uintptr_t)pieces[i].data);
    free(pieces);
}

static void made_fini(struct made *made)
{
    pd_door_rejects_fini(&made->rejects);
    pd_block_head_fini(&made->head);
}

static enum pd_door_reason reason_of(const struct made *made, uint32_t index)
{
    for (uint32_t i = 0; i < made->rejects.count; i++) {
        const struct pd_door_reject *item = &made->rejects.items[i];
        if (index >= item->index && index < item->index + item->count)
            return item->reason;
    }
    return PD_DOOR_OK;
}

/* ---- the model ---- */

static bool mask_on(const uint32_t *runs, uint32_t count, uint32_t token)
{
    uint32_t end = 0;

    for (uint32_t i = 0; i < count; i++)
        if (token < (end += runs[i]))
            return i % 2 == 1;
    return count == 0;
}

static bool bad_value(int32_t value)
{
    return value < 0 || value >= (int32_t)rules.vocab_size;
}

static bool model_shifted(const int32_t *tokens, const int32_t *labels, uint32_t n)
{
    uint32_t compared = 0, next = 0, own = 0;

    for (uint32_t i = 0; i + 1 < n; i++)
        if (labels[i] != PD_LABEL_NONE) {
            compared++;
            next += labels[i] == tokens[i + 1];
            own += labels[i] == tokens[i];
        }
    return compared >= PD_DOOR_SHIFTED_MIN && next == compared && own < compared;
}

static bool model_refused(const struct pushed *p, uint32_t s, const int32_t *tokens,
                          const int32_t *labels, const uint32_t *runs, uint32_t run_count)
{
    uint32_t n = p->lengths[s];
    uint64_t sum = 0;
    bool bad = n == 0 || n > rules.seq_len ||
               (p->head.n_weights && !(p->weights[s] >= 0 && isfinite(p->weights[s]))) ||
               (p->head.n_keys && p->keys[s].len > PD_DOOR_KEY_MAX);

    for (uint32_t i = 0; i < run_count; i++) {
        bad = bad || (i > 0 && runs[i] == 0);
        sum += runs[i];
    }
    bad = bad || (run_count > 0 && sum != n);
    for (uint32_t i = 0; i < n; i++)
        bad = bad || bad_value(tokens[i]) ||
              (labels && labels[i] != PD_LABEL_NONE && bad_value(labels[i]));
    return bad || (labels && model_shifted(tokens, labels, n));
}

static void check_sample(const struct pushed *p, const struct made *made, uint32_t s,
                         const int32_t *tokens, const int32_t *labels, const uint32_t *runs,
                         uint32_t run_count)
{
    struct pd_head head;
    uint32_t n = p->lengths[s];
    bool refused = model_refused(p, s, tokens, labels, runs, run_count);

    assert_int_equal(reason_of(made, s) != PD_DOOR_OK, refused);
    assert_int_equal(made->head.rejected ? made->head.rejected[s] : 0, refused);
    assert_int_equal(made->head.token_digests[s], XXH3_64bits(tokens, n * 4));
    if (labels)
        assert_int_equal(made->head.label_digests[s], XXH3_64bits(labels, n * 4));
    if (refused)
        return;
    pd_block_head_sample(&made->head, s, &head);
    assert_int_equal(head.length_tokens, n);
    assert_int_equal(head.seq, p->head.first_seq + s);
    assert_true(head.weight == (p->head.n_weights ? p->weights[s] : 1.0f));
    for (uint32_t t = 0; t < n; t++) {
        bool on = mask_on(runs, run_count, t) && (!labels || labels[t] != PD_LABEL_NONE);
        bool kept = head.loss.count == 0 || (mask_on(head.loss.lengths, head.loss.count, t));
        if (on != kept)
            fail_msg("sample %u token %u: target %d, kept as %d", s, t, on, kept);
    }
}

static void check_against_model(const struct pushed *p, const struct made *made)
{
    const int32_t *tokens = p->body, *labels = p->head.has_labels ? p->body + p->tokens : NULL;
    const uint32_t *runs = p->mask_runs;

    assert_int_equal(made->head.count, p->head.n_lengths);
    assert_int_equal(made->head.body_bytes, p->head.body_bytes);
    for (uint32_t s = 0; s < p->head.n_lengths; s++) {
        uint32_t run_count = p->head.n_mask_run_counts ? p->mask_counts[s] : 0;
        check_sample(p, made, s, tokens, labels, runs, run_count);
        runs += run_count;
        tokens += p->lengths[s];
        labels = labels ? labels + p->lengths[s] : NULL;
    }
}

/* ---- random blocks ---- */

static void random_mask(struct pushed *p)
{
    p->head.mask_run_counts = p->mask_counts;
    p->head.mask_runs = p->mask_runs;
    p->head.n_mask_run_counts = p->head.n_lengths;
    for (uint32_t s = 0; s < p->head.n_lengths; s++) {
        uint32_t left = p->lengths[s];
        for (bool first = true; left > 0 && below(10) != 0; first = false) {
            uint32_t run = first ? below(left + 1) : 1 + below(left);
            p->mask_runs[p->head.n_mask_runs++] = run;
            p->mask_counts[s]++;
            left -= run;
        }
        if (left > 0 && p->mask_counts[s] > 0 && below(8) != 0) {
            p->mask_runs[p->head.n_mask_runs++] = left;
            p->mask_counts[s]++;
        }
    }
}

static void random_labels(struct pushed *p)
{
    int32_t *labels = pushed_labels(p);
    uint32_t kind = below(4);

    for (uint32_t i = 0; i < p->tokens; i++) {
        if (kind == 1 && i + 1 < p->tokens)
            labels[i] = p->body[i + 1];
        if (kind >= 2 && below(kind == 2 ? 3 : 40) == 0)
            labels[i] = below(20) ? PD_LABEL_NONE : (int32_t)below(1100) - 1;
    }
}

static void random_block(struct pushed *p)
{
    uint32_t samples = 1 + below(SAMPLES_MAX - 1);

    pushed_init(p);
    p->head.first_seq = below(1000);
    for (uint32_t s = 0; s < samples; s++) {
        int32_t *at = pushed_add(p, below(12) ? 1 + below(90) : below(3) * 101);
        for (uint32_t i = 0; i < p->lengths[s]; i++)
            at[i] = below(2) ? at[i] : (int32_t)below(1000);
        if (below(20) == 0 && p->lengths[s] > 0)
            at[below(p->lengths[s])] = below(2) ? -1 - (int32_t)below(5) : 1000;
        p->weights[s] = below(10) ? (float)below(10) : (below(2) ? NAN : -1.0f);
        p->versions[s] = below(5);
    }
    if (below(2)) {
        p->head.weights = p->weights;
        p->head.n_weights = samples;
    }
    if (below(2)) {
        p->head.versions = p->versions;
        p->head.n_versions = samples;
    }
    if (below(2))
        random_mask(p);
    if (below(2))
        random_labels(p);
}

static void agrees_with_the_model(void **state)
{
    struct pushed *p = malloc(sizeof(*p));
    struct made made;

    (void)state;
    assert_non_null(p);
    for (int i = 0; i < 2000; i++) {
        random_block(p);
        make(p, &made, below(3) ? 1 + below(3000) : 1 + below(9));
        check_against_model(p, &made);
        made_fini(&made);
    }
    free(p);
}

/* ---- by hand ---- */

static void refuse_one(struct pushed *p, enum pd_door_reason reason, uint32_t at, int64_t found)
{
    struct made made;
    char text[200];

    make(p, &made, 7);
    check_against_model(p, &made);
    assert_int_equal(made.rejects.count, 1);
    assert_int_equal(made.rejects.items[0].index, 1);
    assert_int_equal(made.rejects.items[0].reason, reason);
    assert_int_equal(made.rejects.items[0].at, at);
    assert_int_equal(made.rejects.items[0].found, found);
    assert_true(strlen(pd_door_reject_text(&made.rejects, &made.rejects.items[0], &rules, text,
                                           sizeof(text))) > 10);
    made_fini(&made);
}

static struct pushed *three(uint32_t middle)
{
    struct pushed *p = malloc(sizeof(*p));

    assert_non_null(p);
    pushed_init(p);
    (void)pushed_add(p, 5);
    (void)pushed_add(p, middle);
    (void)pushed_add(p, 3);
    return p;
}

static void names_each_reason(void **state)
{
    struct pushed *p = three(0);

    (void)state;
    refuse_one(p, PD_DOOR_EMPTY_SAMPLE, 0, 0);
    free(p);
    p = three(201);
    refuse_one(p, PD_DOOR_OVER_LENGTH, 0, 201);
    free(p);
    p = three(10);
    p->body[5 + 9] = 1000;
    refuse_one(p, PD_DOOR_TOKEN_OUT_OF_VOCAB, 9, 1000);
    p->body[5 + 3] = INT32_MIN;
    refuse_one(p, PD_DOOR_TOKEN_OUT_OF_VOCAB, 3, INT32_MIN);
    free(p);
    p = three(10);
    pushed_labels(p)[5 + 4] = -99;
    refuse_one(p, PD_DOOR_LABEL_OUT_OF_RANGE, 4, -99);
    free(p);
}

static void names_reasons_of_columns(void **state)
{
    struct pushed *p = three(10);
    uint8_t key[PD_DOOR_KEY_MAX + 1] = {0};

    (void)state;
    memcpy(p->weights, (float[]){1, INFINITY, 1}, 12);
    p->head.weights = p->weights;
    p->head.n_weights = 3;
    refuse_one(p, PD_DOOR_BAD_WEIGHT, 0, 0);
    free(p);
    p = three(10);
    p->head.keys = p->keys;
    p->head.n_keys = 3;
    p->keys[1] = (ProtobufCBinaryData){.data = key, .len = sizeof(key)};
    p->keys[2] = (ProtobufCBinaryData){.data = key, .len = PD_DOOR_KEY_MAX};
    refuse_one(p, PD_DOOR_KEY_TOO_LONG, 0, PD_DOOR_KEY_MAX + 1);
    free(p);
    p = three(10);
    p->head.mask_run_counts = p->mask_counts;
    p->head.mask_runs = p->mask_runs;
    p->head.n_mask_run_counts = 3;
    p->head.n_mask_runs = p->mask_counts[1] = 3;
    memcpy(p->mask_runs, (uint32_t[]){4, 5, 2}, 12);
    refuse_one(p, PD_DOOR_BAD_MASK, 0, 11);
    memcpy(p->mask_runs, (uint32_t[]){4, 0, 6}, 12);
    refuse_one(p, PD_DOOR_BAD_MASK, 1, 10);
    free(p);
}

/* Sample 1 has a span of two tokens that claims `patches`, in `frames` frames unless that is 0;
 * expected: the bound that refuses it, 0 for none. */
static void claim(uint32_t patches, uint32_t frames, int64_t expected)
{
    struct pushed *p = three(10);
    struct made made;
    uint32_t one = 1, offset = 4, length = 2, height = frames ? patches / frames : 0;
    Packd__V1__Spans spans;

    packd__v1__spans__init(&spans);
    spans.counts = (uint32_t[]){0, 1, 0};
    spans.n_counts = 3;
    spans.offsets = &offset;
    spans.lengths = &length;
    spans.patches = &patches;
    spans.n_offsets = spans.n_lengths = spans.n_patches = 1;
    spans.grid_t = &frames;
    spans.grid_h = &height;
    spans.grid_w = &one;
    spans.n_grid_t = spans.n_grid_h = spans.n_grid_w = frames > 0;
    p->head.spans = &spans;
    make(p, &made, 50);
    assert_int_equal(made.rejects.count, expected > 0);
    if (expected > 0) {
        const struct pd_door_reject *item = made.rejects.items;
        char text[240];
        assert_int_equal(item->index, 1);
        assert_int_equal(item->reason, PD_DOOR_TOO_LARGE);
        assert_int_equal(item->found, patches);
        assert_int_equal(item->expected, expected);
        assert_non_null(strstr(pd_door_reject_text(&made.rejects, item, &rules, text, sizeof text),
                               "max_patches"));
    } else {
        assert_int_equal(made.head.spans[0].patches, patches);
    }
    made_fini(&made);
    free(p);
}

/* Without a tensor that carries them, a span's tokens bound patches and frames. */
static void bounds_claims(void **state)
{
    const uint32_t patches = 2 * PD_DOOR_TOKEN_PATCHES_MAX, frames = 2 * PD_DOOR_TOKEN_FRAMES_MAX;

    (void)state;
    claim(patches, 0, 0);
    claim(patches + 1, 0, patches);
    claim(UINT32_MAX, 0, patches);
    claim(3 * frames, frames, 0);
    claim(frames + 1, frames + 1, frames);
    claim(100000000, 100000000, frames);
}

/* Labels moved by one are refused; what may look like it is not. */
static void shifted_labels(void **state)
{
    struct pushed *p = three(40);
    struct made made;
    int32_t *labels = pushed_labels(p);

    (void)state;
    for (uint32_t i = 0; i + 1 < 40; i++)
        labels[5 + i] = p->body[5 + i + 1];
    labels[5 + 39] = PD_LABEL_NONE;
    refuse_one(p, PD_DOOR_LABELS_LOOK_SHIFTED, 0, 39);
    labels[5 + 20] = 7; /* one label that is its own */
    make(p, &made, 50);
    assert_int_equal(made.rejects.count, 0);
    made_fini(&made);
    for (uint32_t i = 0; i < 40; i++) /* one token throughout: both readings agree */
        labels[5 + i] = p->body[5 + i] = 3;
    make(p, &made, 50);
    assert_int_equal(made.rejects.count, 0);
    made_fini(&made);
    for (uint32_t i = 0; i < 40; i++) { /* too few targets to tell */
        p->body[5 + i] = (int32_t)i + 1;
        labels[5 + i] = i < 40 - PD_DOOR_SHIFTED_MIN ? PD_LABEL_NONE : (int32_t)i + 2;
    }
    make(p, &made, 50);
    assert_int_equal(made.rejects.count, 0);
    made_fini(&made);
    free(p);
}

/* Consecutive samples with one reason are one reject. */
static void joins_rejects(void **state)
{
    struct pushed *p = malloc(sizeof(*p));
    struct made made;

    (void)state;
    assert_non_null(p);
    pushed_init(p);
    for (uint32_t length = 0; length < 9; length++)
        (void)pushed_add(p, length < 4 ? 0 : length < 6 ? 201 : 4);
    make(p, &made, 1000);
    assert_int_equal(made.rejects.count, 2);
    assert_int_equal(made.rejects.samples, 6);
    assert_int_equal(made.rejects.items[0].count, 4);
    assert_int_equal(made.rejects.items[1].index, 4);
    assert_int_equal(made.rejects.items[1].count, 2);
    made_fini(&made);
    free(p);
}

static void refuses_block(struct pushed *p, int code, const char *reason)
{
    struct pd_error error = {0};

    assert_int_equal(pd_door_check(&p->head, &rules, &error), code);
    assert_string_equal(error.reason, reason);
}

static void refuses_blocks_as_a_whole(void **state)
{
    struct pushed *p = three(10);

    (void)state;
    p->head.body_bytes = 18 * 4 - 1;
    refuses_block(p, PD_EINVAL, "LENGTH_MISMATCH");
    p->head.body_bytes = 18 * 4;
    p->head.has_labels = true;
    refuses_block(p, PD_EINVAL, "LENGTH_MISMATCH");
    p->head.has_labels = false;
    p->lengths[0] = p->lengths[1] = UINT32_MAX;
    refuses_block(p, PD_EINVAL, "LENGTH_MISMATCH");
    p->head.body_bytes = (2 * (uint64_t)UINT32_MAX + 3) * 4;
    refuses_block(p, PD_ELIMIT, "BLOCK_TOO_LARGE");
    p->lengths[0] = 5;
    p->lengths[1] = 10;
    p->head.body_bytes = 18 * 4;
    p->head.n_weights = 2;
    p->head.weights = p->weights;
    refuses_block(p, PD_EINVAL, "COLUMN_SIZE");
    p->head.n_weights = 0;
    p->head.n_mask_run_counts = 3;
    p->head.mask_run_counts = p->mask_counts;
    p->mask_counts[1] = 1;
    refuses_block(p, PD_EINVAL, "COLUMN_SIZE");
    p->head.n_mask_run_counts = 0;
    p->head.first_seq = UINT64_MAX - 1;
    refuses_block(p, PD_EINVAL, "BAD_RANGE");
    p->head.first_seq = 0;
    p->head.n_lengths = 0;
    refuses_block(p, PD_EINVAL, "MALFORMED");
    p->head.n_lengths = SAMPLES_MAX + 1;
    refuses_block(p, PD_ELIMIT, "BLOCK_TOO_LARGE");
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_model),
        cmocka_unit_test(names_each_reason),
        cmocka_unit_test(names_reasons_of_columns),
        cmocka_unit_test(bounds_claims),
        cmocka_unit_test(shifted_labels),
        cmocka_unit_test(joins_rejects),
        cmocka_unit_test(refuses_blocks_as_a_whole),
    };
    seed = test_seed(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
