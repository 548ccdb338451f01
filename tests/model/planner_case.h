/* Random planner inputs and ways to run them: shared by the model test and the fuzzer. Tests
 * only. */
#ifndef PD_TESTS_MODEL_PLANNER_CASE_H
#define PD_TESTS_MODEL_PLANNER_CASE_H

#include "tests/model/planner_model.h"

/* Numbers from a seed, or from bytes (then 0 for ever). */
struct chance {
    uint64_t state;
    const uint8_t *bytes;
    size_t left;
    bool from_bytes;
};

struct chance chance_of_seed(uint64_t seed);
struct chance chance_of_bytes(const uint8_t *bytes, size_t size);
/* 0 .. bound - 1; bound 1 or more. */
uint32_t chance_below(struct chance *chance, uint32_t bound);

struct planner_case {
    struct pd_rules rules;
    struct model_log log;
    uint64_t head_count;
    bool has_skip, has_weights, has_rules, ends;
};

/* Weights and skips get their `from_pack` from a first run, see run_live. */
void case_init(struct planner_case *c, struct chance *chance);
void case_fini(struct planner_case *c);
/* Cuts the same heads and records into other blocks, leaving their order as it is. */
void case_recut(struct planner_case *c, struct chance *chance);

struct packs {
    struct pd_pack *pack;
    size_t count, capacity;
    int end;       /* PD_EAGAIN or PD_EEND, or another error */
    uint32_t lane; /* with PD_EAGAIN */
    struct pd_planner_stats stats;
};
void packs_fini(struct packs *packs);

enum run_how {
    RUN_LIVE,    /* records appear one by one, packs are asked for as they come; sets from_pack */
    RUN_AGAIN,   /* the same in another rhythm */
    RUN_AT_ONCE, /* the whole log in sight, every record told first */
};
/* Runs the planner; with `restarts`, it is saved and restored now and then. */
struct packs case_run(struct planner_case *c, struct chance *chance, enum run_how how,
                      bool restarts);
struct packs case_model(const struct planner_case *c, struct model_counts *counts);

/* Where two results differ first, as text, or NULL. `places`: block and index count too. */
const char *packs_differ(const struct packs *a, const struct packs *b, bool places);
/* The first broken property of a run on its own (caps, alignment, parts, age, conservation), or
 * NULL. */
const char *packs_unsound(const struct planner_case *c, const struct packs *packs);

#endif
