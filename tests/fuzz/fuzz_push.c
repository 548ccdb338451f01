/* A PushRequest of any bytes, cut anywhere, through scanner, decoder and door: it must come back,
 * and a block that passes must be one the log takes.
 *
 * Input: one byte of rules, one byte of cut, then the message. The pieces lie in memory of their
 * exact size, so that a read behind one shows under ASan. A block whose body is shorter than its
 * head says is completed with zeros, as later chunks would. */
#include "server/ingest/door.h"
#include "server/ingest/strings.h"
#include "server/ingest/wire.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define PIECES_MAX 512
#define BODY_MAX (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct cut {
    struct pd_piece pieces[PIECES_MAX];
    uint32_t count;
};

static void cut_add(struct cut *cut, const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);

    PD_CHECK(copy && cut->count < PIECES_MAX);
    if (data)
        memcpy(copy, data, size);
    else
        memset(copy, 0, size);
    cut->pieces[cut->count++] = (struct pd_piece){.data = copy, .size_bytes = size};
}

static void cut_up(struct cut *cut, const uint8_t *data, size_t size, size_t step)
{
    while (size > 0) {
        size_t now = size < step || cut->count + 2 >= PIECES_MAX ? size : step;
        cut_add(cut, data, now);
        data += now;
        size -= now;
    }
}

static void cut_free(struct cut *cut)
{
    for (uint32_t i = 0; i < cut->count; i++)
        free((void *)(uintptr_t)cut->pieces[i].data);
}

/* Through the door; the body is what the message held and zeros behind it. */
static void door(const Packd__V1__BlockHead *wire, const struct cut *message,
                 struct pd_wire_range body, const struct pd_door_rules *rules)
{
    struct pd_error error = {0};
    struct pd_door_rejects rejects;
    struct pd_piece pieces[PIECES_MAX + 1];
    struct pd_block block = {.pieces = pieces};
    struct cut rest = {0};
    char text[240];

    if (pd_door_check(wire, rules, &error) != 0) {
        PD_CHECK(error.reason[0] && error.text[0]);
        return;
    }
    if (body.size_bytes > wire->body_bytes)
        body.size_bytes = (size_t)wire->body_bytes;
    uint32_t count = pd_wire_cut(message->pieces, message->count, body, pieces);
    cut_add(&rest, NULL, (size_t)wire->body_bytes - body.size_bytes);
    pieces[count++] = rest.pieces[0];
    block.piece_count = count;
    PD_CHECK(pd_door_make(wire, rules, &block, &rejects, &error) == 0);
    PD_CHECK(pd_block_head_check(&block.head, &error) == 0);
    for (uint32_t i = 0; i < rejects.count; i++)
        PD_CHECK(pd_door_reject_text(&rejects, &rejects.items[i], rules, text, sizeof(text))[0]);
    PD_CHECK(block.view_count <= PD_VIEWS_MAX);
    pd_door_rejects_fini(&rejects);
    pd_block_head_fini(&block.head);
    cut_free(&rest);
}

/* Numbers from the input, one byte each; 0 behind its end. */
struct source {
    const uint8_t *data;
    size_t size, at;
};

static uint32_t number(struct source *source, uint32_t bound)
{
    return source->at < source->size ? source->data[source->at++] % bound : 0;
}

#define COUNT 4

/* Of a tensor of bytes. */
static uint64_t column_bytes(const Packd__V1__TensorSpec *tensor, uint32_t samples)
{
    uint64_t bytes = tensor->axis == PACKD__V1__AXIS__AXIS_SAMPLE ? samples : 0;
    for (size_t i = 0; i < tensor->n_counts; i++)
        bytes += tensor->counts[i];
    return bytes;
}

/* A head with spans and tensors that are nearly in order, since random bytes never get there. */
static void try_media(const uint8_t *data, size_t size, const struct pd_door_rules *rules)
{
    struct source source = {data, size, 0};
    static uint32_t lengths[COUNT], span_counts[COUNT], columns[7][COUNT * 2], counts[3][COUNT * 2];
    static double t_scale[COUNT * 2];
    static char *views[] = {"front", "wrist"}, *span_views[] = {"wrist", "unseen"};
    Packd__V1__BlockHead head = PACKD__V1__BLOCK_HEAD__INIT;
    Packd__V1__Spans spans = PACKD__V1__SPANS__INIT;
    Packd__V1__LossDecl loss = PACKD__V1__LOSS_DECL__INIT;
    Packd__V1__TensorSpec tensor[4], *list[4];
    uint32_t n = 1 + number(&source, COUNT), total = 0, tokens = 0;
    for (uint32_t i = 0; i < n; i++) {
        lengths[i] = number(&source, 12);
        tokens += lengths[i];
        span_counts[i] = number(&source, 3);
        total += span_counts[i];
    }
    for (uint32_t s = 0; s < total; s++) {
        for (uint32_t c = 0; c < 7; c++)
            columns[c][s] = number(&source, c == 0 ? 3 : 5);
        t_scale[s] = number(&source, 4) - 1.0;
    }
    spans.n_views = number(&source, 3);
    spans.views = views;
    spans.counts = span_counts;
    spans.n_counts = n;
    uint32_t **to[] = {&spans.view,   &spans.offsets, &spans.lengths, &spans.patches,
                       &spans.grid_t, &spans.grid_h,  &spans.grid_w};
    for (uint32_t c = 0; c < 7; c++)
        *to[c] = columns[c];
    spans.t_scale = t_scale;
    spans.n_view = spans.n_offsets = spans.n_lengths = spans.n_patches = spans.n_t_scale = total;
    spans.n_grid_t = spans.n_grid_h = spans.n_grid_w = number(&source, 2) ? total : 0;
    spans.merge = number(&source, 6);
    static char *names[] = {"pixels", "jpeg", "mask", "action"};
    static const Packd__V1__Axis axes[] = {
        PACKD__V1__AXIS__AXIS_RAGGED, PACKD__V1__AXIS__AXIS_RAGGED, PACKD__V1__AXIS__AXIS_SAMPLE,
        PACKD__V1__AXIS__AXIS_SAMPLE};
    uint64_t bytes = tokens * 4ull;
    for (uint32_t k = 0; k < 4; k++) {
        packd__v1__tensor_spec__init(&tensor[k]);
        list[k] = &tensor[k];
        tensor[k].name = names[k];
        tensor[k].axis = axes[k];
        tensor[k].dtype = (Packd__V1__DType)(1 + number(&source, 3));
        if (axes[k] != PACKD__V1__AXIS__AXIS_RAGGED)
            continue;
        bool run = k == 1;
        tensor[k].unit =
            run ? PACKD__V1__RAGGED_UNIT__RAGGED_RUN : (Packd__V1__RaggedUnit)number(&source, 3);
        tensor[k].span_views = span_views;
        tensor[k].n_span_views = tensor[k].unit ? number(&source, 3) : 0;
        tensor[k].n_counts = run ? total : n;
        tensor[k].counts = counts[k];
        for (uint32_t i = 0; i < tensor[k].n_counts; i++)
            counts[k][i] = number(&source, 9);
    }
    loss.pad_mask = names[2];
    tensor[3].loss = number(&source, 2) ? &loss : NULL;
    head.lengths = lengths;
    head.n_lengths = n;
    head.spans = &spans;
    head.tensors = list;
    head.n_tensors = number(&source, 5);
    for (size_t k = 0; k < head.n_tensors; k++)
        bytes += column_bytes(&tensor[k], n);
    head.body_bytes = bytes;
    struct cut body = {0};
    cut_up(&body, data, size < bytes ? size : (size_t)bytes, 5);
    door(&head, &body, (struct pd_wire_range){0, size < bytes ? size : (size_t)bytes}, rules);
    cut_free(&body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cut message = {0};
    struct pd_wire_push push;
    struct pd_error error = {0};

    if (size < 2)
        return 0;
    static const uint32_t media_tokens[] = {3, 900};
    const struct pd_door_rules rules = {.seq_len = 1 + data[0] % 64,
                                        .reject_over_length = data[0] & 64,
                                        .vocab_size = data[0] & 128 ? 1000 : 0,
                                        .sample_bytes_max = 4096,
                                        .block_bytes_max = BODY_MAX,
                                        .block_samples_max = 4096,
                                        .split_over_length = !(data[0] & 64),
                                        .mrope = data[0] & 16,
                                        .patches_max = data[0] & 8 ? 40 : 0,
                                        .media_tokens = media_tokens,
                                        .media_token_count = data[0] & 4 ? 2 : 0,
                                        .check_shifted = data[0] & 32};
    cut_up(&message, data + 2, size - 2, 1 + data[1]);
    if (pd_wire_push_split(message.pieces, message.count, &push, &error) != 0) {
        PD_CHECK(strcmp(error.reason, "MALFORMED") == 0);
    } else if (push.kind == PD_WIRE_BLOCK) {
        uint8_t *scratch = malloc(push.head.size_bytes + 1);
        PD_CHECK(scratch);
        const uint8_t *flat = pd_wire_flat(message.pieces, message.count, push.head, scratch);
        Packd__V1__BlockHead *head =
            packd__v1__block_head__unpack(NULL, push.head.size_bytes, flat);
        if (head && pd_strings_check(head->base.descriptor, flat, push.head.size_bytes, &error))
            PD_CHECK(strcmp(error.reason, "MALFORMED") == 0);
        if (head) {
            door(head, &message, push.body, &rules);
            packd__v1__block_head__free_unpacked(head, NULL);
        }
        free(scratch);
    }
    cut_free(&message);
    try_media(data + 2, size - 2, &rules);
    return 0;
}
