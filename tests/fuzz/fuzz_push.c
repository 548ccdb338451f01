/* A PushRequest of any bytes, cut anywhere, through scanner, decoder and door: it must come back,
 * and a block that passes must be one the log takes.
 *
 * Input: one byte of rules, one byte of cut, then the message. The pieces lie in memory of their
 * exact size, so that a read behind one shows under ASan. A block whose body is shorter than its
 * head says is completed with zeros, as later chunks would. */
#include "server/ingest/door.h"
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
        if (head) {
            door(head, &message, push.body, &rules);
            packd__v1__block_head__free_unpacked(head, NULL);
        }
        free(scratch);
    }
    cut_free(&message);
    return 0;
}
