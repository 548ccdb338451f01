/* Durable append: the sequencer (blocks in, heads and bodies written, packs planned) against a
 * bare LMDB loop that writes the same bytes with the same flags and commit sizes, in one run,
 * taking turns. Prints medians over ROUNDS: the ratio, MB/s of wall time, and microseconds of CPU
 * time a block of 64 KiB, in packd's case with the making and digesting of the blocks; exits 1
 * where a ratio is below PD_BENCH_MIN (default 0: report only).
 *
 *   log_bench [DIR] [MiB per measurement]     DIR on the disk in question, or TEST_TMPDIR, or
 * /tmp */
#include "tests/unit/scratch.h"
#include "tests/unit/sequencer_case.h"

#include "base/check.h"
#include "base/clock.h"

#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <xxhash.h>

#define SAMPLE_TOKENS 512u
#define BLOCK_SAMPLES 32u
#define BLOCK_BYTES (SAMPLE_TOKENS * BLOCK_SAMPLES * 4u)
#define IN_FLIGHT 256
#define ROUNDS 7

struct slot {
    struct pd_request_append request;
    struct pd_block block;
    struct pd_piece piece;
    uint32_t lengths[BLOCK_SAMPLES];
    uint64_t digests[BLOCK_SAMPLES];
    bool busy;
};

static struct slot slots[IN_FLIGHT];
static int32_t body[BLOCK_BYTES / 4];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t freed = PTHREAD_COND_INITIALIZER;
static uint32_t busy;

static void keep(struct pd_block *block)
{
    (void)block; /* slots are static */
}

static void answered(struct pd_request *request)
{
    PD_CHECK(request->result == 0);
    struct slot *slot = PD_CONTAINER_OF(request, struct slot, request.base);
    pthread_mutex_lock(&mutex);
    slot->busy = false;
    busy--;
    pthread_cond_signal(&freed);
    pthread_mutex_unlock(&mutex);
}

static void fill_slot(struct slot *slot, const struct seq_stream *stream, uint64_t seq)
{
    for (uint32_t i = 0; i < BLOCK_SAMPLES; i++) {
        slot->lengths[i] = SAMPLE_TOKENS;
        slot->digests[i] = XXH3_64bits(body + i * SAMPLE_TOKENS, SAMPLE_TOKENS * 4);
    }
    slot->piece = (struct pd_piece){.data = (const uint8_t *)body, .size_bytes = BLOCK_BYTES};
    slot->block = (struct pd_block){.head = {.stream = stream->open.stream_id,
                                             .first_seq = seq,
                                             .count = BLOCK_SAMPLES,
                                             .body_bytes = BLOCK_BYTES,
                                             .lengths = slot->lengths,
                                             .token_digests = slot->digests},
                                    .pieces = &slot->piece,
                                    .piece_count = 1,
                                    .release = keep};
    slot->request =
        (struct pd_request_append){.base = {.kind = PD_REQUEST_APPEND, .done = answered},
                                   .block = &slot->block,
                                   .epoch = stream->open.epoch};
    slot->busy = true;
}

static struct slot *free_slot(void)
{
    for (int i = 0; i < IN_FLIGHT; i++)
        if (!slots[i].busy)
            return &slots[i];
    return NULL;
}

static void wait_below(uint32_t limit)
{
    while (busy >= limit)
        pthread_cond_wait(&freed, &mutex);
}

struct rate {
    double mb_s, cpu_us;
};

struct clocks {
    uint64_t wall_ns, cpu_ns;
};

static struct clocks clocks_now(void)
{
    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    return (struct clocks){.wall_ns = pd_clock_mono_ns(),
                           .cpu_ns = (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec};
}

static struct rate rate_since(struct clocks start, uint64_t blocks)
{
    struct clocks now = clocks_now();
    return (struct rate){.mb_s = (double)(blocks * BLOCK_BYTES) * 1e3 /
                                 (double)(now.wall_ns - start.wall_ns),
                         .cpu_us = (double)(now.cpu_ns - start.cpu_ns) / 1e3 / (double)blocks};
}

static struct rate run_sequencer(uint64_t blocks, uint64_t commit_bytes,
                                 enum pd_durability durability)
{
    struct seq_case c;
    struct pd_error error = {0};
    struct seq_stream stream = {.feed = "feed0", .name = "bench"};
    uint32_t in_flight = (uint32_t)(2 * commit_bytes / BLOCK_BYTES);
    seq_case_config(&c, 1);
    c.config.log_max_bytes = 16ull << 30;
    c.config.commit_bytes = commit_bytes;
    c.config.commit_ns = 1000000000;
    c.config.durability = durability;
    c.config.feeds[0].rules.seq_len = c.config.feeds[0].layout.seq_len = 4096;
    c.config.feeds[0].rules.window_samples = 1024;
    c.config.feeds[0].plan_ahead_bytes = 1ull << 40;
    seq_case_dir(&c, "logbench");
    PD_CHECK(seq_case_start(&c, &error) == 0 && seq_open(&c, &stream) == 0);
    struct clocks started = clocks_now();
    pthread_mutex_lock(&mutex);
    for (uint64_t i = 0; i < blocks; i++) {
        wait_below(in_flight < IN_FLIGHT ? in_flight : IN_FLIGHT);
        struct slot *slot = free_slot();
        fill_slot(slot, &stream, i * BLOCK_SAMPLES);
        busy++;
        PD_CHECK(pd_sequencer_submit(c.seq, &slot->request.base) == 0);
    }
    wait_below(1);
    pthread_mutex_unlock(&mutex);
    struct rate rate = rate_since(started, blocks);
    seq_case_stop(&c);
    seq_case_fini(&c);
    return rate;
}

static struct rate run_bare(uint64_t blocks, uint64_t commit_bytes, enum pd_durability durability)
{
    struct seq_case c;
    MDB_env *env;
    MDB_txn *txn = NULL;
    MDB_dbi dbi;
    seq_case_dir(&c, "barebench");
    PD_CHECK(mdb_env_create(&env) == 0 && mdb_env_set_mapsize(env, 64ull << 30) == 0);
    PD_CHECK(mdb_env_open(env, c.dir, durability == PD_DURABILITY_FSYNC ? 0 : MDB_NOSYNC, 0600) ==
             0);
    PD_CHECK(mdb_txn_begin(env, NULL, 0, &txn) == 0 && mdb_dbi_open(txn, NULL, 0, &dbi) == 0);
    struct clocks started = clocks_now();
    uint64_t written = 0;
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t big_endian = __builtin_bswap64(i);
        MDB_val key = {sizeof big_endian, &big_endian}, value = {BLOCK_BYTES, NULL};
        PD_CHECK(mdb_put(txn, dbi, &key, &value, MDB_RESERVE | MDB_APPEND) == 0);
        memcpy(value.mv_data, body, BLOCK_BYTES);
        written += BLOCK_BYTES;
        if (written < commit_bytes && i + 1 < blocks)
            continue;
        PD_CHECK(mdb_txn_commit(txn) == 0);
        if (i + 1 < blocks)
            PD_CHECK(mdb_txn_begin(env, NULL, 0, &txn) == 0);
        written = 0;
    }
    struct rate rate = rate_since(started, blocks);
    mdb_env_close(env);
    return rate;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

struct figures {
    double bare_mb_s[ROUNDS], packd_mb_s[ROUNDS], ratio[ROUNDS], bare_us[ROUNDS], packd_us[ROUNDS];
};

/* Prints a line; the median of the ratios. */
static double measure(uint64_t blocks, uint64_t commit_bytes, enum pd_durability durability)
{
    static struct figures f;
    for (int i = 0; i < ROUNDS; i++) {
        struct rate bare = {0}, packd;
        if (i % 2 == 0) /* they take turns in going first */
            bare = run_bare(blocks, commit_bytes, durability);
        packd = run_sequencer(blocks, commit_bytes, durability);
        if (i % 2 == 1)
            bare = run_bare(blocks, commit_bytes, durability);
        f.bare_mb_s[i] = bare.mb_s;
        f.packd_mb_s[i] = packd.mb_s;
        f.ratio[i] = packd.mb_s / bare.mb_s;
        f.bare_us[i] = bare.cpu_us;
        f.packd_us[i] = packd.cpu_us;
        scratch_clear();
    }
    double ratio = median(f.ratio);
    printf("%-10s %-10llu %8.2f %10.1f %10.1f %12.1f %12.1f\n",
           durability == PD_DURABILITY_FSYNC ? "fsync" : "process",
           (unsigned long long)commit_bytes, ratio, median(f.packd_mb_s), median(f.bare_mb_s),
           median(f.packd_us), median(f.bare_us));
    fflush(stdout);
    return ratio;
}

int main(int argc, char **argv)
{
    static const uint64_t commits[] = {64u << 10, 1u << 20, 4u << 20};
    const char *minimum_text = getenv("PD_BENCH_MIN");
    if (argc > 1)
        setenv("TEST_TMPDIR", argv[1], 1);
    uint64_t blocks = (argc > 2 ? strtoull(argv[2], NULL, 10) : 256) * (1u << 20) / BLOCK_BYTES;
    double minimum = minimum_text ? strtod(minimum_text, NULL) : 0;
    bool low = false;
    for (uint32_t i = 0; i < PD_COUNT_OF(body); i++)
        body[i] = (int32_t)(i * 2654435761u >> 8);
    printf("%-10s %-10s %8s %10s %10s %12s %12s\n", "durability", "commit", "ratio", "packd MB/s",
           "bare MB/s", "packd us/blk", "bare us/blk");
    for (int durability = 1; durability >= 0; durability--)
        for (size_t i = 0; i < PD_COUNT_OF(commits); i++)
            low |= measure(durability && i == 0 ? blocks / 4 : blocks, commits[i],
                           (enum pd_durability)durability) < minimum;
    return low;
}
