/* What the watch counts and remembers, against a recount position by position; and the two small
 * memories beside it: arrivals and history. */
#include "server/arrivals.h"
#include "server/history.h"
#include "server/watch.h"

#include "base/check.h"
#include "tests/unit/layout_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NAMES 20 /* more than a feed has slots for */

struct expected {
    uint64_t real[NAMES], gap, tail, row_padding, packed, padded;
};

/* The parts of a header that the watch reads, among fields that it must pass over. */
static void put_header(struct pd_buf *header, const struct layout_case *c, const uint32_t *sources)
{
    struct pd_buf packs = {0}, column = {0}, table = {0};
    char name[20];
    for (uint32_t i = 0; i < c->row_count; i++)
        pd_buf_put_varint(&packs, 2 * (100 + i));
    for (uint32_t i = 0; i < c->batch.real_segment_count; i++)
        pd_buf_put_varint(&column, sources[i]);
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, i ? "source-%d" : "default", i);
        pd_buf_put_u8(&table, 2 << 3 | 2);
        pd_buf_put_string(&table, name, strlen(name));
    }
    pd_buf_put_varint(&table, 13 << 3 | 1);
    pd_buf_put_u64(&table, UINT64_MAX);
    pd_buf_put_u8(&table, 7 << 3 | 2);
    pd_buf_put_string(&table, (const char *)column.data, column.size_bytes);
    pd_buf_put_u8(header, 1 << 3);
    pd_buf_put_varint(header, 1);
    pd_buf_put_u8(header, 15 << 3 | 2);
    pd_buf_put_string(header, (const char *)packs.data, packs.size_bytes);
    pd_buf_put_varint(header, 40 << 3 | 5);
    pd_buf_put_u32(header, 7);
    pd_buf_put_varint(header, 27 << 3 | 2);
    pd_buf_put_string(header, (const char *)table.data, table.size_bytes);
    assert_false(header->failed || table.failed);
    pd_buf_fini(&packs);
    pd_buf_fini(&column);
    pd_buf_fini(&table);
}

static void recount(const struct layout_case *c, const uint32_t *sources, struct expected *sums)
{
    const int32_t *cu = case_array(c, "cu_seqlens"), *lens = case_array(c, "seq_lens");
    const int32_t *index = case_array(c, "sample_index");
    uint64_t used[CASE_ROWS_MAX] = {0};
    for (uint32_t s = 0; s < c->batch.segment_count; s++) {
        uint64_t slot = (uint64_t)(cu[s + 1] - cu[s]);
        if (index[s] < 0) {
            sums->packed += slot ? pd_cost_segment(c->rules.cost, slot) : 0;
            continue;
        }
        sums->real[sources[index[s]]] += (uint64_t)lens[s];
        sums->gap += slot - (uint64_t)lens[s];
        sums->packed += pd_cost_segment(c->rules.cost, (uint64_t)lens[s]);
        sums->padded += pd_cost_segment(c->rules.cost, c->rules.seq_len);
        used[(uint32_t)cu[s] / c->batch.width] += slot;
    }
    for (uint32_t row = 0; row < c->row_count; row++) {
        if (used[row] > 0)
            sums->tail += c->batch.width - used[row];
        else
            sums->row_padding += c->batch.width;
    }
}

static uint64_t slot_value(struct pd_watch *watch, const char *name, const char *kind)
{
    struct pd_buf text = {0};
    char line[200];
    static struct pd_watch *shown;
    shown = watch;
    pd_metrics_register((void (*)(void *, struct pd_metrics_writer *))pd_watch_put_tokens, shown);
    assert_int_equal(pd_metrics_render(&text, false), 0);
    pd_buf_put_u8(&text, 0);
    pd_metrics_unregister_all();
    snprintf(line, sizeof line,
             *name ? "\npackd_pack_tokens_total{feed=\"default\",kind=\"%s\",source=\"%s\"} "
                   : "\npackd_pack_tokens_total{feed=\"default\",kind=\"%s\"} ",
             kind, name);
    const char *at = strstr((char *)text.data, line);
    uint64_t value = at ? strtoull(at + strlen(line), NULL, 10) : UINT64_MAX;
    pd_buf_fini(&text);
    return value;
}

static void deliver(struct pd_watch *watch, const struct layout_case *c, const uint32_t *sources)
{
    struct pd_buf header = {0};
    put_header(&header, c, sources);
    struct pd_ready_batch batch = {.key = {.step = 9, .dp_rank = 3},
                                   .batch = c->batch,
                                   .payload = c->payload,
                                   .header = header.data,
                                   .header_bytes = header.size_bytes};
    pd_watch_delivered(watch, &batch, true);
    pd_buf_fini(&header);
}

static void check_rows(struct pd_watch *watch, const struct layout_case *c)
{
    struct pd_watch_row rows[PD_WATCH_ROWS_MAX];
    const int32_t *ids = case_array(c, "segment_ids");
    uint32_t count = pd_watch_rows(watch, 0, rows);
    assert_true(count >= c->row_count);
    for (uint32_t i = 0; i < c->row_count; i++) {
        const struct pd_watch_row *row = &rows[count - c->row_count + i];
        uint64_t real = 0, drawn = 0;
        int32_t highest = 0;
        for (uint32_t at = 0; at < c->batch.width; at++) {
            int32_t id = ids[(size_t)i * c->batch.width + at];
            real += id > 0;
            highest = id > highest ? id : highest;
        }
        for (uint32_t s = 0; s < row->shown; s++)
            drawn += row->segments[s].length;
        assert_int_equal(drawn, real);
        assert_int_equal(row->segment_count, highest);
        assert_int_equal(row->pack, 100 + i);
        assert_int_equal(row->width, c->batch.width);
        assert_true(row->step == 9 && row->dp_rank == 3);
    }
}

/* A feed that begins anew has sums and rows of its own; counters go on. */
static void check_renewed(struct pd_watch *watch, const struct layout_case *c,
                          const uint32_t *sources, const struct pd_watch_sums *first)
{
    struct pd_watch_row rows[PD_WATCH_ROWS_MAX];
    struct pd_watch_sums sums;
    pd_watch_renewed(watch, 0);
    pd_watch_sums(watch, 0, &sums);
    assert_true(sums.real == 0 && sums.gap == 0 && sums.tail == 0 && sums.row_padding == 0);
    assert_int_equal(sums.renewed, first->renewed + 1);
    assert_int_equal(pd_watch_rows(watch, 0, rows), 0);
    assert_int_equal(slot_value(watch, "", "row_padding"), first->row_padding);
    deliver(watch, c, sources);
    pd_watch_sums(watch, 0, &sums);
    assert_int_equal(sums.real, first->real);
    assert_int_equal(sums.row_padding, first->row_padding);
    assert_int_equal(slot_value(watch, "", "row_padding"), 2 * first->row_padding);
    check_rows(watch, c);
}

static void test_random_batches(void **state)
{
    (void)state;
    uint64_t seed = 20250711;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 40; round++) {
        struct layout_case *c = case_new();
        struct pd_config config;
        struct pd_watch *watch;
        struct pd_error error = {0};
        struct expected sums = {0};
        case_randomise(c, &seed);
        assert_int_equal(case_build(c, &error), 0);
        assert_int_equal(pd_config_default(&config), 0);
        config.feeds[0].layout = c->rules;
        assert_int_equal(pd_watch_new(&config, &watch, &error), 0);
        uint32_t *sources = calloc(c->batch.real_segment_count + 1, sizeof *sources);
        assert_non_null(sources);
        uint32_t range = 1 + test_below(&seed, NAMES);
        for (uint32_t i = 0; i < c->batch.real_segment_count; i++)
            sources[i] = test_below(&seed, range);
        recount(c, sources, &sums);
        deliver(watch, c, sources);
        struct pd_watch_sums found;
        uint64_t real = 0, other = 0;
        pd_watch_sums(watch, 0, &found);
        for (uint32_t i = 0; i < NAMES; i++) {
            char name[20];
            snprintf(name, sizeof name, i ? "source-%u" : "", i);
            real += sums.real[i];
            if (i > PD_WATCH_SOURCES_MAX)
                other += sums.real[i];
            else
                assert_int_equal(slot_value(watch, name, "real"), sums.real[i]);
        }
        if (other > 0)
            assert_int_equal(slot_value(watch, "other", "real"), other);
        assert_int_equal(found.real, real);
        assert_int_equal(found.gap, sums.gap);
        assert_int_equal(found.tail, sums.tail);
        assert_int_equal(found.row_padding, sums.row_padding);
        assert_int_equal(slot_value(watch, "", "row_padding"), sums.row_padding);
        check_rows(watch, c);
        check_renewed(watch, c, sources, &found);
        free(sources);
        pd_watch_free(watch);
        pd_config_fini(&config);
        case_free(c);
    }
}

static void test_configured_sources_start_at_zero(void **state)
{
    (void)state;
    static const char yaml[] = "feeds: [{name: default, sources: {web: {weight: 2}, code: {}}}]";
    struct pd_config config;
    struct pd_watch *watch;
    struct pd_error error = {0};
    assert_int_equal(pd_config_default(&config), 0);
    if (pd_config_parse(&config, yaml, sizeof yaml - 1, "test", &error) != 0)
        fail_msg("%s", error.text);
    assert_int_equal(pd_watch_new(&config, &watch, &error), 0);
    assert_int_equal(slot_value(watch, "code", "tail"), 0);
    assert_int_equal(slot_value(watch, "web", "real"), 0);
    assert_int_equal(slot_value(watch, "", "row_padding"), 0);
    assert_int_equal(slot_value(watch, "other", "real"), UINT64_MAX);
    assert_null(pd_watch_source(watch, 0, 3));
    assert_string_equal(pd_watch_source(watch, 0, 0), "");
    pd_watch_free(watch);
    pd_config_fini(&config);
}

static void test_arrivals(void **state)
{
    (void)state;
    struct pd_arrivals arrivals = {0};
    assert_int_equal(pd_arrivals_time(&arrivals, 7), 0);
    for (uint64_t second = 1; second <= 10000; second++)
        pd_arrivals_note(&arrivals, second * 10, second * 1000000000u);
    assert_true(arrivals.count <= PD_ARRIVALS_MAX);
    assert_int_equal(pd_arrivals_time(&arrivals, 9), 0);
    for (uint64_t position = 10; position < 99000; position += 7) {
        uint64_t true_ns = position / 10 * 1000000000u,
                 told = pd_arrivals_time(&arrivals, position);
        assert_true(told <= true_ns && told + arrivals.interval_ns >= true_ns);
    }
}

static void test_history(void **state)
{
    (void)state;
    static struct pd_history history;
    struct pd_history_mark before;
    assert_false(pd_history_before(&history, 60, &before));
    for (uint64_t second = 0; second <= 8000; second++) {
        struct pd_history_mark mark = {.at_ns = second * 1000000000u, .real = second * 5};
        pd_history_note(&history, &mark);
    }
    assert_int_equal(history.count, PD_HISTORY_MARKS);
    assert_int_equal(history.now.real, 40000);
    assert_true(pd_history_before(&history, 60, &before));
    assert_int_equal(before.at_ns / 1000000000u, 7940);
    assert_true(pd_history_before(&history, 65, &before));
    assert_int_equal(before.at_ns / 1000000000u, 7930);
    assert_true(pd_history_before(&history, 100000, &before)); /* the oldest there is */
    assert_int_equal(before.at_ns / 1000000000u, 4400);
    assert_int_equal(pd_history_at(&history, history.count - 1)->at_ns / 1000000000u, 8000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_batches),
        cmocka_unit_test(test_configured_sources_start_at_zero),
        cmocka_unit_test(test_arrivals),
        cmocka_unit_test(test_history),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
