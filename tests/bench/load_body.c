/* What `load` sends: one block of samples, made once, the same in every message. The pipe takes its
 * bytes for what they are; packd also gets a head that describes them (load_packd.c). Lengths vary
 * around their mean by half of it, from a fixed seed, so both servers always see the same. */
#include "tests/bench/load.h"

#include "base/check.h"

#include <stdlib.h>

static uint32_t random_below(uint32_t *state, uint32_t bound)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)*state * bound) >> 32);
}

static void fill_text(struct load_body *body, uint32_t mean)
{
    uint32_t left = LOAD_BODY_BYTES / 4, random = 1;
    int32_t *tokens = (int32_t *)(void *)body->bytes;
    for (uint32_t i = 0; i < left; i++)
        tokens[i] = (int32_t)((i * 2654435761u) >> 16);
    body->size = LOAD_BODY_BYTES;
    while (left > 0) {
        uint32_t length = mean / 2 + random_below(&random, mean + 1);
        if (length == 0)
            length = 1;
        body->lengths[body->samples++] = length < left ? length : left;
        left -= length < left ? length : left;
    }
}

static size_t media_bytes(uint32_t patches)
{
    return (LOAD_TEXT_TOKENS + patches / LOAD_MERGE) * sizeof(int32_t) +
           (size_t)patches * LOAD_PATCH_BYTES + 4 * LOAD_ACTION_STEPS * LOAD_ACTION_VALUES;
}

/* As many images of 8 x 8 to 12 x 12 patches as there is room for. */
static void choose_images(struct load_body *body)
{
    uint32_t random = 1;
    for (;;) {
        uint32_t h = 8 + 2 * random_below(&random, 3), w = 8 + 2 * random_below(&random, 3);
        if (body->size + media_bytes(h * w) > LOAD_BODY_BYTES)
            return;
        body->size += media_bytes(h * w);
        body->lengths[body->samples] = LOAD_TEXT_TOKENS + h * w / LOAD_MERGE;
        body->grids[body->samples][0] = h;
        body->grids[body->samples++][1] = w;
    }
}

static void fill_media(struct load_body *body)
{
    choose_images(body);
    int32_t *token = (int32_t *)(void *)body->bytes;
    for (uint32_t s = 0; s < body->samples; s++)
        for (uint32_t i = 0; i < body->lengths[s]; i++)
            *token++ = i < LOAD_TEXT_TOKENS ? (int32_t)(1000 + i) : LOAD_MEDIA_TOKEN;
    for (uint8_t *at = (uint8_t *)token; at < body->bytes + body->size; at++)
        *at = (uint8_t)((uintptr_t)(at - body->bytes) * 167 >> 3);
}

void load_fill_body(struct load *load)
{
    struct load_body *body = &load->body;
    uint32_t samples_max = LOAD_BODY_BYTES / 4;
    body->bytes = malloc(LOAD_BODY_BYTES);
    body->lengths = malloc(samples_max * sizeof *body->lengths);
    body->grids = malloc(samples_max * sizeof *body->grids);
    PD_CHECK(body->bytes && body->lengths && body->grids);
    if (load->media)
        fill_media(body);
    else
        fill_text(body, load->sample_tokens);
    for (uint32_t i = 0; i < body->samples; i++)
        body->tokens += body->lengths[i];
}
