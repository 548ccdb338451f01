/* Assembling one batch: plan and heads from the log, layout, structural check, digests, header.
 *
 * Place in the flow: an assemble thread of serve.c calls begin, step, measure, build, end for each
 * batch. The thread owns the assembler and its log reader; rows and header memory are kept from
 * batch to batch.
 *
 * Invariant: what build returns is a function of (plan entry, log, configuration); it passed every
 * structural rule against the plan that was read in the same transaction. Sample bytes are verified
 * against the digests of the door where they lie in the batch (tokens_check.c), what is cut, pruned
 * or a label by pd_log_bodies.
 *
 * It does not decide which batch is built, does not retry, and does not count or log: serve
 * does. */
#include "server/assemble.h"

#include "base/check.h"
#include "base/clock.h"
#include "packer/layout.h"
#include "server/payload.h"
#include "server/step_order.h"
#include "server/tokens_check.h"

#include <stdlib.h>
#include <string.h>

#define ASSEMBLER_MAGIC 0x61736d62u
#define ORDERS 4 /* jobs take turns: each finds its part still sorted */

struct pd_assembler {
    uint32_t magic;
    bool open, measured;
    bool rows_held; /* the batch's packs are in `packs` since pd_assembler_step read them */
    struct pd_log_reader *reader;
    struct pd_header *header;
    struct pd_pack step_pack;            /* scratch of pd_assembler_step */
    struct pd_step_order orders[ORDERS]; /* of job j at j % ORDERS */
    struct pd_pack *packs;               /* of the batch's rows; row_capacity of them */
    const struct pd_pack **rows;
    uint32_t row_capacity;
    struct pd_layout_rules rules;
    struct pd_media media;
    struct pd_tensor_spec tensors[PD_TENSORS_MAX]; /* of media */
    struct pd_bodies bodies;   /* for the layout: the check verifies whole columns */
    struct pd_bodies verified; /* for the check */
    struct pd_error damage;    /* what the bodies found */
    struct pd_batch batch;
    struct pd_width_report width;
    struct pd_batch_key key;
    uint32_t max_seqlen_real, max_seqlen_padded;
    size_t header_bytes;
    uint64_t checked_ns;
    pd_corrupt_fn *corrupt;
    void *corrupt_ctx;
};

int pd_assembler_new(struct pd_log *log, struct pd_assembler **assembler, struct pd_error *error)
{
    struct pd_assembler *a = calloc(1, sizeof *a);
    if (!a)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for an assembler");
    a->magic = ASSEMBLER_MAGIC;
    int rc = pd_header_new(&a->header);
    if (rc != 0)
        pd_error_set(error, rc, "NO_MEMORY", "no memory for a batch header");
    else
        rc = pd_log_reader_new(log, &a->reader, error);
    if (rc != 0) {
        pd_header_free(a->header);
        free(a);
        return rc;
    }
    *assembler = a;
    return 0;
}

void pd_assembler_free(struct pd_assembler *a)
{
    if (!a)
        return;
    PD_MAGIC_CHECK(a, ASSEMBLER_MAGIC);
    PD_CHECK(!a->open);
    pd_log_reader_free(a->reader);
    pd_header_free(a->header);
    pd_pack_fini(&a->step_pack);
    for (uint32_t i = 0; i < ORDERS; i++)
        pd_step_order_fini(&a->orders[i]);
    for (uint32_t i = 0; i < a->row_capacity; i++)
        pd_pack_fini(&a->packs[i]);
    free(a->packs);
    free(a->rows);
    free(a);
}

void pd_assembler_set_corruption(struct pd_assembler *a, pd_corrupt_fn *corrupt, void *ctx)
{
    PD_MAGIC_CHECK(a, ASSEMBLER_MAGIC);
    a->corrupt = corrupt;
    a->corrupt_ctx = ctx;
}

int pd_assembler_begin(struct pd_assembler *a, struct pd_error *error)
{
    PD_MAGIC_CHECK(a, ASSEMBLER_MAGIC);
    PD_CHECK(!a->open);
    int rc = pd_log_reader_begin(a->reader);
    if (rc != 0)
        return pd_error_set(error, rc, "LOG_READ", "cannot begin a read transaction on the log: %s",
                            pd_err_text(rc));
    a->open = true;
    a->measured = a->rows_held = false;
    return 0;
}

void pd_assembler_end(struct pd_assembler *a)
{
    PD_MAGIC_CHECK(a, ASSEMBLER_MAGIC);
    PD_CHECK(a->open);
    pd_log_reader_end(a->reader);
    a->open = a->measured = a->rows_held = false;
}

/* The feed's rules as the header states totals: attention cost is the plain sum of squares. */
static struct pd_layout_rules rules_of(const struct pd_feed_config *feed)
{
    struct pd_layout_rules rules = feed->layout;
    rules.cost = (struct pd_cost){.alpha = 0, .beta = 1};
    return rules;
}

/* What reading pack `number` said, in words: one that is missing and has not been trimmed is
 * lost. */
static int read_failed(struct pd_assembler *a, const struct pd_assemble_order *order,
                       uint64_t number, int rc, struct pd_error *error)
{
    uint64_t lowest;
    if (rc == PD_ENOTFOUND && pd_log_lowest_pack(a->reader, order->key.feed_index, &lowest) == 0 &&
        lowest <= number)
        rc = PD_ECORRUPT;
    if (rc == PD_ENOTFOUND)
        return pd_error_set(error, PD_ERANGE, "STEP_TRIMMED",
                            "pack %llu of step %llu of job %s is no longer in the log",
                            (unsigned long long)number, (unsigned long long)order->key.step,
                            order->spec->name);
    if (rc != 0)
        return pd_error_set(error, rc, rc == PD_ECORRUPT ? "CHECKSUM" : "LOG_READ",
                            "pack %llu of feed %s cannot be read: %s", (unsigned long long)number,
                            order->feed->name, pd_err_text(rc));
    return 0;
}

static struct pd_step_order *order_at(struct pd_assembler *a, const struct pd_assemble_order *order)
{
    return &a->orders[order->key.job_id % ORDERS];
}

/* Makes the order of the step's packs known to read_entry. */
static int load_order(struct pd_assembler *a, const struct pd_assemble_order *order,
                      struct pd_error *error)
{
    uint64_t failed;
    int rc = pd_step_order_load(order_at(a, order), a->reader, order->key.feed_index, &order->steps,
                                &order->place, &failed);
    return read_failed(a, order, failed, rc, error);
}

/* The pack that is entry `entry` of the step. */
static int read_entry(struct pd_assembler *a, const struct pd_assemble_order *order, uint32_t entry,
                      struct pd_pack *pack, struct pd_error *error)
{
    uint64_t number = pd_step_order_pack(order_at(a, order), &order->place, entry);
    int rc = pd_log_read_pack(a->reader, order->key.feed_index, number, pack);
    return read_failed(a, order, number, rc, error);
}

/* ---- a step: totals over all its packs ---- */

/* Rows that share a width: a batch, or with width: step the whole step. */
struct group {
    uint32_t rows, empty_rows, widest_slots;
    uint64_t used_slots;
};

static void group_close(struct group *group, const struct pd_layout_rules *rules,
                        struct pd_step_totals *totals)
{
    uint64_t width = pd_layout_width(rules, group->widest_slots);
    totals->tail_tokens += (group->rows - group->empty_rows) * width - group->used_slots;
    totals->row_padding_tokens += group->empty_rows * width;
    *group = (struct group){0};
}

static void group_add(struct group *group, const struct pd_pack *pack)
{
    group->rows++;
    if (!pack || pack->segment_count == 0) {
        group->empty_rows++;
        return;
    }
    group->used_slots += pack->used_slots;
    if (pack->used_slots > group->widest_slots)
        group->widest_slots = pack->used_slots;
}

/* Of all packs that the step was chosen from. */
static int step_plan_facts(struct pd_assembler *a, const struct pd_assemble_order *order,
                           struct pd_step_facts *facts, struct pd_error *error)
{
    uint32_t feed = order->key.feed_index;
    struct pd_plan_facts first, last;
    uint64_t first_pack = order->place.part_first_pack;
    uint64_t last_pack = first_pack + order->place.part_pack_count - 1;
    int rc = pd_log_read_plan_facts(a->reader, feed, first_pack, &first);
    if (rc == 0)
        rc = pd_log_read_plan_facts(a->reader, feed, last_pack, &last);
    if (rc != 0)
        return pd_error_set(error, rc, rc == PD_ECORRUPT ? "CHECKSUM" : "LOG_READ",
                            "the plan facts of step %llu of job %s cannot be read: %s",
                            (unsigned long long)order->key.step, order->spec->name,
                            pd_err_text(rc));
    facts->config_digest = first.config_digest;
    facts->planner_version = first.planner_version;
    facts->plan_digest = last.plan_digest;
    return 0;
}

static int damaged_head(const struct pd_segment *segment, int rc, struct pd_error *error)
{
    if (rc != PD_ENOTFOUND && rc != PD_ECORRUPT)
        return pd_error_set(error, rc, "LOG_READ", "block %llu cannot be read: %s",
                            (unsigned long long)segment->block, pd_err_text(rc));
    return pd_error_set(error, PD_ECORRUPT, "CHECKSUM",
                        "the head of sample seq %llu of stream number %u (block %llu, entry %u) is "
                        "missing or damaged",
                        (unsigned long long)segment->seq, segment->stream,
                        (unsigned long long)segment->block, segment->index);
}

/* ---- media: what the step's batches carry beside tokens ---- */

/* Tensors that the samples of a pack have. */
static int pack_tensors(struct pd_assembler *a, uint32_t feed, const struct pd_pack *pack,
                        uint64_t *tensors, struct pd_error *error)
{
    for (uint32_t i = 0; i < pack->segment_count; i++) {
        const struct pd_segment *segment = &pack->segments[i];
        const struct pd_block_head *head;
        int rc = pd_log_read_head(a->reader, feed, segment->block, &head);
        if (rc != 0)
            return damaged_head(segment, rc, error);
        for (uint32_t k = 0; k < head->tensor_count; k++)
            *tensors |= UINT64_C(1) << head->tensors[k].number;
    }
    return 0;
}

static bool pack_has_patches(const struct pd_pack *pack)
{
    for (uint32_t i = 0; i < pack->segment_count; i++)
        if (pack->segments[i].patches > 0)
            return true;
    return false;
}

/* Makes a->media what the facts say. */
static int load_media(struct pd_assembler *a, const struct pd_assemble_order *order,
                      const struct pd_step_facts *facts, struct pd_error *error)
{
    a->media = (struct pd_media){.vision = facts->vision, .tensors = a->tensors};
    for (uint32_t k = 0; k < PD_TENSORS_MAX; k++) {
        if (!(facts->tensors >> k & 1))
            continue;
        int rc = pd_log_read_tensor(a->reader, order->key.feed_index, k,
                                    &a->tensors[a->media.tensor_count++]);
        if (rc != 0)
            return pd_error_set(error, rc == PD_ENOTFOUND ? PD_ECORRUPT : rc, "CHECKSUM",
                                "the declaration of tensor number %u of feed %s cannot be read: %s",
                                k, order->feed->name, pd_err_text(rc));
    }
    a->damage = (struct pd_error){0};
    uint32_t feed = order->key.feed_index;
    pd_log_bodies(a->reader, feed, PD_VERIFY_LATER, &a->bodies, &a->damage);
    pd_log_bodies(a->reader, feed, PD_VERIFY_COPIES, &a->verified, &a->damage);
    return 0;
}

static struct pd_layout_input input_of(const struct pd_assembler *a,
                                       const struct pd_layout_rules *rules)
{
    return (struct pd_layout_input){
        .rules = rules, .rows = a->rows, .media = &a->media, .bodies = &a->bodies};
}

/* What went wrong below a call that reads bodies: the damage they found, or the call's own
 * error. */
static int bodies_failed(struct pd_assembler *a, int rc, struct pd_error *error)
{
    if (a->damage.code != 0 && error)
        *error = a->damage;
    return rc;
}

/* Loss totals of tensors over the whole step. */
static int step_losses(struct pd_assembler *a, const struct pd_assemble_order *order,
                       struct pd_step_facts *facts, struct pd_error *error)
{
    struct pd_layout_rules rules = rules_of(order->feed);
    int rc = load_media(a, order, facts, error);
    for (uint32_t t = 0; rc == 0 && t < a->media.tensor_count; t++)
        if (a->media.tensors[t].is_loss)
            facts->totals.losses[facts->totals.loss_count++].number = a->media.tensors[t].number;
    struct pd_layout_input input = input_of(a, &rules);
    bool any = rc == 0 && facts->totals.loss_count > 0;
    for (uint32_t j = 0; any && rc == 0 && j < order->place.pack_count; j++) {
        rc = read_entry(a, order, j, &a->step_pack, error);
        if (rc != 0)
            return rc;
        rc = pd_layout_losses_add(&input, &a->step_pack, facts->totals.losses);
        if (rc != 0)
            return bodies_failed(a,
                                 pd_error_set(error, rc, "LOG_READ",
                                              "the pad masks of step %llu cannot be read: %s",
                                              (unsigned long long)order->key.step, pd_err_text(rc)),
                                 error);
    }
    return rc;
}

/* Whether the feed ever had a tensor: only then are heads worth a look. */
static bool has_tensors(struct pd_assembler *a, const struct pd_assemble_order *order)
{
    struct pd_tensor_spec first;
    return pd_log_read_tensor(a->reader, order->key.feed_index, 0, &first) != PD_ENOTFOUND;
}

static int rows_reserve(struct pd_assembler *a, uint32_t rows)
{
    if (rows <= a->row_capacity)
        return 0;
    struct pd_pack *packs = reallocarray(a->packs, rows, sizeof *packs);
    if (!packs)
        return PD_ENOMEM;
    a->packs = packs;
    const struct pd_pack **list = reallocarray(a->rows, rows, sizeof *list);
    if (!list)
        return PD_ENOMEM;
    a->rows = list;
    memset(packs + a->row_capacity, 0, (rows - a->row_capacity) * sizeof *packs);
    a->row_capacity = rows;
    return 0;
}

/* The first of the batch's entries of its step. */
static uint32_t first_entry(const struct pd_assemble_order *order)
{
    return (order->key.micro * order->spec->dp_size + order->key.dp_rank) * order->spec->rows;
}

/* Where entry `entry` of the step is read to: the batch's own rows stay for its measure. */
static struct pd_pack *pack_of(struct pd_assembler *a, const struct pd_assemble_order *order,
                               uint32_t entry)
{
    uint32_t first = first_entry(order);
    return entry >= first && entry - first < order->spec->rows ? &a->packs[entry - first]
                                                               : &a->step_pack;
}

int pd_assembler_step(struct pd_assembler *a, const struct pd_assemble_order *order,
                      struct pd_step_facts *facts, struct pd_error *error)
{
    PD_MAGIC_CHECK(a, ASSEMBLER_MAGIC);
    uint32_t pack_count = order->place.pack_count;
    PD_CHECK(a->open && pack_count >= 1 && pack_count <= order->spec->step_packs);
    struct pd_layout_rules rules = rules_of(order->feed);
    struct group group = {0};
    *facts = (struct pd_step_facts){0};
    a->rows_held = false;
    bool tensors = has_tensors(a, order);
    int rc = load_order(a, order, error);
    if (rc == 0 && rows_reserve(a, order->spec->rows) != 0)
        rc =
            pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for %u rows", order->spec->rows);
    for (uint32_t j = 0; rc == 0 && j < order->spec->step_packs; j++) {
        struct pd_pack *pack = j < pack_count ? pack_of(a, order, j) : NULL;
        rc = pack ? read_entry(a, order, j, pack, error) : 0;
        if (rc != 0)
            return rc;
        group_add(&group, pack);
        if (pack) {
            pd_totals_add(&facts->totals.sums, pack, rules.loss, rules.cost);
            if (pack->used_slots > facts->widest_slots)
                facts->widest_slots = pack->used_slots;
            facts->vision = facts->vision || pack_has_patches(pack);
            rc = tensors ? pack_tensors(a, order->key.feed_index, pack, &facts->tensors, error) : 0;
        }
        bool batch_ends = (j + 1) % order->spec->rows == 0;
        if (j + 1 == order->spec->step_packs || (batch_ends && rules.width != PD_WIDTH_STEP))
            group_close(&group, &rules, &facts->totals);
    }
    a->rows_held = rc == 0;
    a->key = order->key;
    if (rc == 0 && facts->tensors != 0)
        rc = step_losses(a, order, facts, error);
    return rc == 0 ? step_plan_facts(a, order, facts, error) : rc;
}

/* ---- a batch: its packs, its shape, its sample table ---- */

/* Reads the batch's packs, or takes what pd_assembler_step has read of them in this
 * transaction. */
static int rows_read(struct pd_assembler *a, const struct pd_assemble_order *order,
                     struct pd_error *error)
{
    const struct pd_job_spec *spec = order->spec;
    bool held = a->rows_held && memcmp(&a->key, &order->key, sizeof a->key) == 0;
    if (rows_reserve(a, spec->rows) != 0)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for %u rows", spec->rows);
    uint32_t entry = first_entry(order);
    int rc = held ? 0 : load_order(a, order, error);
    for (uint32_t row = 0; rc == 0 && row < spec->rows; row++, entry++) {
        a->rows[row] = NULL;
        if (entry >= order->place.pack_count)
            continue;
        rc = held ? 0 : read_entry(a, order, entry, &a->packs[row], error);
        if (rc == 0)
            a->rows[row] = &a->packs[row];
    }
    a->rows_held = false;
    return rc;
}

static uint32_t rows_widest(const struct pd_assembler *a, uint32_t rows)
{
    uint32_t widest = 0;
    for (uint32_t row = 0; row < rows; row++)
        if (a->rows[row] && a->rows[row]->used_slots > widest)
            widest = a->rows[row]->used_slots;
    return widest;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Longest steps of the Megatron pair: real lengths, and slots with the row's tail joined to the
 * last one. */
static void megatron_longest(struct pd_assembler *a, uint32_t rows, uint32_t width)
{
    a->max_seqlen_real = a->max_seqlen_padded = 0;
    for (uint32_t row = 0; row < rows; row++) {
        const struct pd_pack *pack = a->rows[row];
        if (!pack || pack->segment_count == 0) {
            a->max_seqlen_real = a->max_seqlen_padded = width;
            continue;
        }
        uint32_t tail = width - pack->used_slots;
        for (uint32_t i = 0; i < pack->segment_count; i++) {
            const struct pd_segment *segment = &pack->segments[i];
            uint32_t slot = segment->slot_tokens + (i + 1 == pack->segment_count ? tail : 0);
            a->max_seqlen_real = max_u32(a->max_seqlen_real, segment->length_tokens);
            a->max_seqlen_padded = max_u32(a->max_seqlen_padded, slot);
        }
    }
}

/* Entry `index` of a byte column with running ends; NULL where it is empty. */
static const uint8_t *bytes_of(const uint8_t *bytes, const uint32_t *ends, uint32_t index,
                               size_t *size)
{
    if (!ends) {
        *size = 0;
        return NULL;
    }
    uint32_t from = index > 0 ? ends[index - 1] : 0;
    *size = ends[index] - from;
    return *size ? bytes + from : NULL;
}

/* Those that the header does not have yet. */
static int sample_names(struct pd_assembler *a, uint32_t feed, const struct pd_segment *segment,
                        char stream[PD_NAME_MAX + 1], char source[PD_NAME_MAX + 1])
{
    stream[0] = source[0] = 0;
    if (pd_header_has_names(a->header, segment))
        return 0;
    int rc = pd_log_read_stream_name(a->reader, feed, segment->stream, stream);
    return rc != 0 ? rc : pd_log_read_source_name(a->reader, feed, segment->source, source);
}

static int table_add(struct pd_assembler *a, uint32_t feed, const struct pd_segment *segment,
                     struct pd_error *error)
{
    const struct pd_block_head *head;
    int rc = pd_log_read_head(a->reader, feed, segment->block, &head);
    if (rc == 0 && (segment->index >= head->count || !head->token_digests))
        rc = PD_ECORRUPT;
    char stream[PD_NAME_MAX + 1], source[PD_NAME_MAX + 1];
    if (rc == 0)
        rc = sample_names(a, feed, segment, stream, source);
    if (rc != 0)
        return damaged_head(segment, rc, error);
    struct pd_header_sample sample = {
        .segment = segment,
        .stream = stream,
        .source = source,
        .version = head->versions ? head->versions[segment->index] : 0,
        .digest = head->token_digests[segment->index],
        .loss_weight = pd_segment_loss_weight(segment, a->rules.loss),
        .plain_labels = !head->has_labels && segment->loss_tokens + 1 == segment->length_tokens,
    };
    sample.key = bytes_of(head->keys, head->key_ends, segment->index, &sample.key_bytes);
    sample.group = bytes_of(head->groups, head->group_ends, segment->index, &sample.group_bytes);
    if (pd_header_sample(a->header, &sample) != 0)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for the sample table");
    return 0;
}

static int table_read(struct pd_assembler *a, uint32_t feed, struct pd_error *error)
{
    pd_header_begin(a->header);
    for (uint32_t row = 0; row < a->batch.rows; row++) {
        const struct pd_pack *pack = a->rows[row];
        if (pd_header_row(a->header, pack ? (int64_t)pack->number : -1) != 0)
            return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for the header");
        for (uint32_t i = 0; pack && i < pack->segment_count; i++) {
            int rc = table_add(a, feed, &pack->segments[i], error);
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

static int finish_header(struct pd_assembler *a, const struct pd_assemble_order *order,
                         const struct pd_step_facts *facts, struct pd_error *error)
{
    struct pd_header_facts header = {
        .feed = order->feed->name,
        .job = order->spec->name,
        .step = order->key.step,
        .micro = order->key.micro,
        .dp_rank = order->key.dp_rank,
        .step_packs = order->spec->step_packs,
        .dp_size = order->spec->dp_size,
        .accum = order->spec->accum,
        .rules = &a->rules,
        .batch = &a->batch,
        .media = &a->media,
        .width = &a->width,
        .step_totals = &facts->totals,
        .max_seqlen_real = a->max_seqlen_real,
        .max_seqlen_padded = a->max_seqlen_padded,
        .config_digest = facts->config_digest,
        .plan_digest = facts->plan_digest,
        .planner_version = facts->planner_version,
    };
    int rc = pd_header_finish(a->header, &header, &a->header_bytes);
    if (rc != 0)
        return pd_error_set(error, rc, "HEADER",
                            "the header of step %llu micro %u dp_rank %u does not match its plan",
                            (unsigned long long)order->key.step, order->key.micro,
                            order->key.dp_rank);
    return 0;
}

int pd_assembler_measure(struct pd_assembler *a, const struct pd_assemble_order *order,
                         const struct pd_step_facts *facts, uint64_t *bytes, struct pd_error *error)
{
    PD_MAGIC_CHECK(a, ASSEMBLER_MAGIC);
    PD_CHECK(a->open);
    a->measured = false;
    a->rules = rules_of(order->feed);
    int rc = rows_read(a, order, error);
    a->key = order->key;
    if (rc != 0)
        return rc;
    uint32_t rows = order->spec->rows;
    uint32_t widest = a->rules.width == PD_WIDTH_STEP ? facts->widest_slots : rows_widest(a, rows);
    uint32_t width = pd_layout_width(&a->rules, widest);
    rc = load_media(a, order, facts, error);
    if (rc != 0)
        return rc;
    struct pd_layout_input input = input_of(a, &a->rules);
    input.row_count = rows;
    input.width = width;
    rc = pd_layout_measure(&input, &a->batch, error);
    if (rc != 0)
        return bodies_failed(a, rc, error);
    megatron_longest(a, rows, width);
    pd_width_report_make(&a->rules, a->rules.width_bound, order->feed->layout.cost, &a->batch,
                         a->rows, &a->width);
    rc = table_read(a, order->key.feed_index, error);
    if (rc == 0)
        rc = finish_header(a, order, facts, error);
    if (rc != 0)
        return rc;
    a->measured = true;
    *bytes = a->batch.payload_bytes + a->header_bytes;
    return 0;
}

/* ---- build ---- */

static int violated(const struct pd_assembler *a, const struct pd_check_finding *finding,
                    struct pd_error *error)
{
    return pd_error_set(
        error, PD_ECORRUPT, "VIOLATION",
        "step %llu micro %u dp_rank %u breaks the rule %s at row %u position %u: %s",
        (unsigned long long)a->key.step, a->key.micro, a->key.dp_rank,
        pd_check_finding_name(finding), finding->row, finding->position, finding->text);
}

/* The rules of the contract, and the samples' bytes against the log. The digests of the arrays are
 * taken from the bytes that are checked. */
static int prove(struct pd_assembler *a, const uint8_t *payload, struct pd_check_finding *finding)
{
    uint64_t began_ns = pd_clock_mono_ns(), digests[PD_ARRAYS_MAX];
    struct pd_check_heads heads;
    pd_log_check_heads(a->reader, a->key.feed_index, &heads, &a->damage);
    struct pd_tokens_check check = {.reader = a->reader,
                                    .feed_index = a->key.feed_index,
                                    .rules = &a->rules,
                                    .bodies = &a->verified,
                                    .batch = &a->batch,
                                    .media = &a->media,
                                    .rows = a->rows,
                                    .payload = payload};
    struct pd_check_tokens tokens = pd_tokens_check_tokens(&check);
    struct pd_check_input input = {.rules = &a->rules,
                                   .batch = &a->batch,
                                   .payload = payload,
                                   .rows = a->rows,
                                   .media = &a->media,
                                   .heads = &heads,
                                   .tokens = &tokens,
                                   .digests = digests};
    int rc = pd_check_batch(&input, finding);
    if (rc == 0)
        rc = pd_tokens_check_tensors(&check, finding);
    for (uint32_t i = 0; rc == 0 && i < a->batch.array_count; i++)
        a->batch.arrays[i].digest = digests[i];
    a->checked_ns = pd_clock_mono_ns() - began_ns;
    return rc;
}

/* Lays the batch out at `payload` and proves it against the plan. */
static int fill_and_check(struct pd_assembler *a, uint8_t *payload,
                          struct pd_check_finding *finding, struct pd_error *error)
{
    struct pd_layout_input input = input_of(a, &a->rules);
    input.row_count = a->batch.rows;
    input.width = a->batch.width;
    int rc = pd_layout_fill(&input, &a->batch, payload);
    if (rc != 0)
        return bodies_failed(
            a,
            pd_error_set(error, rc, rc == PD_ECORRUPT ? "CHECKSUM" : "LOG_READ",
                         "the samples of step %llu micro %u dp_rank %u cannot be read: %s",
                         (unsigned long long)a->key.step, a->key.micro, a->key.dp_rank,
                         pd_err_text(rc)),
            error);
    bool unchecked = a->corrupt && a->corrupt(a->corrupt_ctx, &a->key, &a->batch, payload);
    if (unchecked)
        pd_batch_digest(&a->batch, payload);
    else
        rc = prove(a, payload, finding);
    if (rc == PD_ECORRUPT && finding->text[0])
        return violated(a, finding, error);
    if (rc != 0)
        return bodies_failed(a,
                             pd_error_set(error, rc, "LOG_READ",
                                          "the samples of step %llu cannot be read again: %s",
                                          (unsigned long long)a->key.step, pd_err_text(rc)),
                             error);
    finding->text[0] = 0;
    return 0;
}

void pd_ready_batch_clear(struct pd_ready_batch *batch)
{
    pd_payload_free(batch->payload, batch->batch.payload_bytes);
    free(batch->header);
    batch->payload = batch->header = NULL;
}

int pd_assembler_build(struct pd_assembler *a, struct pd_ready_batch *ready,
                       struct pd_check_finding *finding, struct pd_error *error)
{
    PD_MAGIC_CHECK(a, ASSEMBLER_MAGIC);
    PD_CHECK(a->open && a->measured);
    uint64_t began_ns = pd_clock_mono_ns();
    *finding = (struct pd_check_finding){0};
    a->measured = false; /* a damaged batch must be measured again */
    uint8_t *payload = pd_payload_new(a->batch.payload_bytes);
    uint8_t *header = malloc(a->header_bytes);
    int rc = payload && header ? 0
                               : pd_error_set(error, PD_ENOMEM, "NO_MEMORY",
                                              "no memory for a batch of %llu bytes",
                                              (unsigned long long)a->batch.payload_bytes);
    if (rc == 0)
        rc = fill_and_check(a, payload, finding, error);
    if (rc == 0 && pd_header_pack(a->header, header, a->header_bytes) != 0)
        rc = pd_error_set(error, PD_EINTERNAL, "HEADER", "the header changed its size");
    if (rc != 0) {
        pd_payload_free(payload, a->batch.payload_bytes);
        free(header);
        return rc;
    }
    ready->key = a->key;
    ready->batch = a->batch;
    ready->saved_positions = a->width.saved_positions;
    ready->payload = payload;
    ready->header = header;
    ready->header_bytes = a->header_bytes;
    ready->built_ns = pd_clock_mono_ns() - began_ns;
    ready->checked_ns = a->checked_ns;
    return 0;
}
