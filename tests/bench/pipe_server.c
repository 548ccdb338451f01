/* The bare pipe: what gRPC and LMDB do when nothing stands between them. The ceiling that packd's
 * end-to-end rate is held against, in the same run, with the same channel arguments, threads, group
 * commits and LMDB settings.
 *
 *   pipe_server ADDRESS DIR fsync|process     prints the address it has bound
 *
 *   In call ──messages──> writer: one LMDB transaction a group ──> ack ──> In call
 *                                                            └──doorbell──> Out calls ──> records
 *
 * The threads of core_server.h, and the writer's. A record is copied once in (slices to a reserved
 * page) and once out (page to a slice). It checks nothing, forgets nothing, and ends by a signal.
 */
#include "base/check.h"
#include "tests/bench/core_server.h"
#include "tests/bench/pipe.h"

#include <grpc/byte_buffer_reader.h>
#include <lmdb.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define COMMIT_BYTES (4u << 20)

struct call {
    struct core_call base;
    struct core_tag got, wrote, begun, closed, bell;
    grpc_byte_buffer *message;
    int cancelled;
    struct call *next_out;
    pthread_mutex_t lock; /* for what follows */
    bool writing;
    uint64_t committed, acked; /* In */
    bool started;              /* Out */
    uint64_t at, ranks, credit;
};

struct item {
    struct item *next;
    struct call *call;
    grpc_byte_buffer *message;
};

static MDB_env *env;
static MDB_dbi dbi;
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_filled = PTHREAD_COND_INITIALIZER;
static struct item *queue_first, **queue_last = &queue_first;
static struct call *outs; /* under queue_lock */
static uint64_t records;  /* committed; under queue_lock */

/* ---- ops ---- */

static void start_op(struct call *call, grpc_op op, struct core_tag *tag)
{
    PD_CHECK(grpc_call_start_batch(call->base.call, &op, 1, tag, NULL) == GRPC_CALL_OK);
}

static void read_next(struct call *call)
{
    start_op(
        call,
        (grpc_op){.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->message},
        &call->got);
}

static void write_slice(struct call *call, grpc_slice slice)
{
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    start_op(call, (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = buffer},
             &call->wrote);
    grpc_byte_buffer_destroy(buffer);
}

/* ---- In ---- */

/* Under the call's lock. */
static void ack(struct call *call)
{
    if (call->writing || call->acked == call->committed)
        return;
    call->writing = true;
    call->acked = call->committed;
    write_slice(call, grpc_slice_from_copied_buffer((const char *)&call->acked, 8));
}

static void enqueue(struct call *call, grpc_byte_buffer *message)
{
    struct item *item = malloc(sizeof *item);
    PD_CHECK(item);
    *item = (struct item){.call = call, .message = message};
    pthread_mutex_lock(&queue_lock);
    *queue_last = item;
    queue_last = &item->next;
    pthread_cond_signal(&queue_filled);
    pthread_mutex_unlock(&queue_lock);
}

/* ---- Out ---- */

static grpc_slice read_record(uint64_t number)
{
    MDB_txn *txn;
    uint64_t big_endian = __builtin_bswap64(number);
    MDB_val key = {sizeof big_endian, &big_endian}, value;
    PD_CHECK(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0);
    PD_CHECK(mdb_get(txn, dbi, &key, &value) == 0);
    grpc_slice slice = grpc_slice_malloc(value.mv_size);
    memcpy(GRPC_SLICE_START_PTR(slice), value.mv_data, value.mv_size);
    mdb_txn_abort(txn);
    return slice;
}

static void send_next(struct call *call)
{
    pthread_mutex_lock(&queue_lock);
    uint64_t there = records;
    pthread_mutex_unlock(&queue_lock);
    pthread_mutex_lock(&call->lock);
    if (call->started && !call->writing && call->credit > 0 && call->at < there) {
        call->writing = true;
        call->credit--;
        write_slice(call, read_record(call->at));
        call->at += call->ranks;
    }
    pthread_mutex_unlock(&call->lock);
}

static void ring(struct call *call)
{
    PD_CHECK(grpc_call_start_batch(call->base.call, NULL, 0, &call->bell, NULL) == GRPC_CALL_OK);
}

static void take_request(struct call *call, grpc_byte_buffer *message)
{
    grpc_byte_buffer_reader reader;
    PD_CHECK(grpc_byte_buffer_reader_init(&reader, message));
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    const uint8_t *bytes = GRPC_SLICE_START_PTR(all);
    uint64_t credit;
    uint32_t rank, ranks;
    pthread_mutex_lock(&call->lock);
    memcpy(&credit, bytes + (call->started ? 0 : 8), 8);
    call->credit += credit;
    if (!call->started) {
        memcpy(&rank, bytes, 4);
        memcpy(&ranks, bytes + 4, 4);
        call->at = rank;
        call->ranks = ranks;
    }
    bool first = !call->started;
    call->started = true;
    pthread_mutex_unlock(&call->lock);
    grpc_slice_unref(all);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(message);
    if (first) {
        pthread_mutex_lock(&queue_lock);
        call->next_out = outs;
        outs = call;
        pthread_mutex_unlock(&queue_lock);
    }
    send_next(call);
}

/* ---- calls; a call lives as long as the process ---- */

static bool is_out(const struct call *call)
{
    return grpc_slice_str_cmp(call->base.details.method, PIPE_OUT) == 0;
}

static void on_wrote(void *op_of, bool ok)
{
    struct call *call = op_of;
    pthread_mutex_lock(&call->lock);
    call->writing = !ok; /* a call that is gone writes no more */
    if (ok && !is_out(call))
        ack(call);
    pthread_mutex_unlock(&call->lock);
    if (ok && is_out(call))
        send_next(call);
}

static void on_got(void *op_of, bool ok)
{
    struct call *call = op_of;
    grpc_byte_buffer *message = ok ? call->message : NULL;
    call->message = NULL;
    if (!message)
        return;
    if (is_out(call))
        take_request(call, message);
    else
        enqueue(call, message);
    read_next(call);
}

static void on_bell(void *op_of, bool ok)
{
    struct call *call = op_of;
    if (ok)
        send_next(call);
}

static void on_nothing(void *call, bool ok)
{
    (void)call, (void)ok;
}

static void on_call(void *accepted)
{
    struct call *call = accepted;
    pthread_mutex_init(&call->lock, NULL);
    call->got = (struct core_tag){on_got, call};
    call->wrote = (struct core_tag){on_wrote, call};
    call->begun = call->closed = (struct core_tag){on_nothing, call};
    call->bell = (struct core_tag){on_bell, call};
    start_op(call, (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA}, &call->begun);
    start_op(call,
             (grpc_op){.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                       .data.recv_close_on_server.cancelled = &call->cancelled},
             &call->closed);
    read_next(call);
}

/* ---- the writer ---- */

static void put_record(MDB_txn *txn, uint64_t number, grpc_byte_buffer *message)
{
    grpc_byte_buffer_reader reader;
    grpc_slice slice;
    uint64_t big_endian = __builtin_bswap64(number);
    MDB_val key = {sizeof big_endian, &big_endian};
    MDB_val value = {grpc_byte_buffer_length(message), NULL};
    PD_CHECK(mdb_put(txn, dbi, &key, &value, MDB_RESERVE | MDB_APPEND) == 0);
    uint8_t *at = value.mv_data;
    PD_CHECK(grpc_byte_buffer_reader_init(&reader, message));
    while (grpc_byte_buffer_reader_next(&reader, &slice)) {
        memcpy(at, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
        at += GRPC_SLICE_LENGTH(slice);
        grpc_slice_unref(slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
}

static struct item *take_item(bool wait)
{
    pthread_mutex_lock(&queue_lock);
    while (wait && !queue_first)
        pthread_cond_wait(&queue_filled, &queue_lock);
    struct item *item = queue_first;
    if (item && !(queue_first = item->next))
        queue_last = &queue_first;
    pthread_mutex_unlock(&queue_lock);
    return item;
}

static void finish_item(struct item *item)
{
    pthread_mutex_lock(&item->call->lock);
    item->call->committed++;
    ack(item->call);
    pthread_mutex_unlock(&item->call->lock);
    grpc_byte_buffer_destroy(item->message);
    free(item);
}

static void write_group(void)
{
    struct item *group = NULL, **last = &group;
    uint64_t bytes = 0, number = records;
    MDB_txn *txn;
    struct item *item = take_item(true);
    PD_CHECK(mdb_txn_begin(env, NULL, 0, &txn) == 0);
    for (; item; item = bytes < COMMIT_BYTES ? take_item(false) : NULL) {
        put_record(txn, number++, item->message);
        bytes += grpc_byte_buffer_length(item->message);
        *last = item;
        last = &item->next;
        item->next = NULL;
    }
    PD_CHECK(mdb_txn_commit(txn) == 0);
    pthread_mutex_lock(&queue_lock);
    records = number;
    struct call *out = outs;
    pthread_mutex_unlock(&queue_lock);
    for (struct item *next; group; group = next) {
        next = group->next;
        finish_item(group);
    }
    for (; out; out = out->next_out)
        ring(out);
}

/* ---- start ---- */

static void open_log(const char *dir, bool fsync_each)
{
    MDB_txn *txn;
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* as packd's log does */
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    mkdir(dir, 0700);
    PD_CHECK(mdb_env_create(&env) == 0 && mdb_env_set_mapsize(env, 64ull << 30) == 0);
    PD_CHECK(mdb_env_open(env, dir, MDB_NOTLS | (fsync_each ? 0 : MDB_NOSYNC), 0600) == 0);
    PD_CHECK(mdb_txn_begin(env, NULL, 0, &txn) == 0 && mdb_dbi_open(txn, NULL, 0, &dbi) == 0);
    PD_CHECK(mdb_txn_commit(txn) == 0);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: pipe_server ADDRESS DIR fsync|process\n");
        return 2;
    }
    open_log(argv[2], strcmp(argv[3], "fsync") == 0);
    core_server_start(argv[1], sizeof(struct call), on_call);
    for (;;)
        write_group();
}
