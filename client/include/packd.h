/* libpackd: push samples to a packd server, fetch packed batches from it, look at it and steer it.
 *
 *   producer:  packd_producer_open -> put, put, ... -> flush / end_stream -> close
 *   trainer:   packd_job_open -> next, release, next, ... commit ... -> close
 *   operator:  packd_admin_open -> status, explain, flush, ... -> close
 *
 * Objects are opaque; everything else is a plain struct. A struct of options filled with zeros
 * means the defaults. Strings are UTF-8 and copied by the call they are given to.
 *
 * Results. Functions return 0 or a negative PACKD_E* code and, where `error` is not NULL, say there
 * what was wrong, with which server, stream, job and step, and what to do. *error is only written
 * on failure. After a failed call everything that was given to it still belongs to the caller.
 *
 * Time. Every blocking call takes timeout_ms: how long it may take in all, reconnects included; 0
 * looks once and does not wait; PACKD_TIMEOUT_DEFAULT takes the object's timeout_ms. There is no
 * infinite wait. A call that returns PACKD_ETIMEDOUT has lost nothing: call it again.
 * packd_*_interrupt ends a blocking call early (PACKD_ECANCELED), likewise without loss.
 *
 * Threads. Each producer and each job runs one thread of its own, which is the only one to talk to
 * the server, and which never calls into the caller's code: callbacks run inside the caller's own
 * calls, on the caller's thread. All functions of one object may be called from any thread; of the
 * blocking ones (put, flush, end_stream, end_feed; next) one at a time; commit may run beside next,
 * and inside its callbacks. close must be the last call: not beside another one, and not inside a
 * callback (packd_*_stop ends those that run).
 * Different objects are independent. Nothing here may be used in a child made by fork() after the
 * first open.
 *
 * Connections. An object reconnects by itself, with growing pauses (50 ms to 2 s), for as long as
 * it lives; what it had sent and what it had returned decide where it goes on, so that nothing is
 * lost, repeated or reordered. An error that waiting cannot mend is final: it is returned by every
 * later call on the object. */
#ifndef PACKD_H
#define PACKD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PACKD_VERSION_STRING "0.1.0"
#define PACKD_DEFAULT_SERVER "127.0.0.1:7070"
#define PACKD_TIMEOUT_DEFAULT INT64_C(-1)

enum {
    PACKD_EINVAL = -1, /* an argument, or INVALID_ARGUMENT from the server */
    PACKD_ENOMEM = -2,
    PACKD_ELIMIT = -3,    /* RESOURCE_EXHAUSTED: over a limit that is named */
    PACKD_EEND = -6,      /* next: the feed has ended, or steps_max is reached; not a failure */
    PACKD_ENOTFOUND = -7, /* unknown feed, job or stream */
    PACKD_EEXIST = -8,    /* the stream exists with another content_id */
    PACKD_EMISMATCH = -9, /* FAILED_PRECONDITION: both values are named */
    PACKD_EFENCED = -10,  /* a newer producer or a newer world has taken over: final */
    PACKD_ERANGE = -11,   /* the step is no longer in the log */
    PACKD_ECORRUPT = -12, /* bytes that do not match their digest, or break the contract */
    PACKD_EIO = -13,
    PACKD_EUNAVAIL = -14,     /* draining, or not to be reached; not final */
    PACKD_ETIMEDOUT = -15,    /* the call's time is over; not final */
    PACKD_ECANCELED = -16,    /* interrupted; not final */
    PACKD_EUNSUPPORTED = -18, /* the server does not know the call */
    PACKD_EDENIED = -19,
    PACKD_EUNAUTH = -20,
    PACKD_EINTERNAL = -22
};

struct packd_error {
    int code;        /* PACKD_E* */
    int grpc_code;   /* status of the call that failed, 0 where none did */
    char reason[40]; /* stable, UPPER_SNAKE (SEQ_GAP), as in the wire contract */
    char text[640];  /* for people */
};

/* "PACKD_ETIMEDOUT"; "PACKD_E?" for an unknown code. */
const char *packd_error_name(int code);
/* Version of the library, PACKD_VERSION_STRING of its build. */
const char *packd_version(void);

struct packd_bytes {
    size_t size;
    const uint8_t *data;
};

/* How to reach the server, in the options of every object. What is not set is taken from the
 * environment: `server` from PACKD_SERVER (else PACKD_DEFAULT_SERVER), `token` from PACKD_TOKEN,
 * the fields of `tls` from PACKD_CA, PACKD_CERT, PACKD_KEY and PACKD_TLS_NAME, `on` from
 * PACKD_TLS=1.
 *
 * A server is "host:port" with a port from 1 to 65535, or "unix:/path"; else PACKD_EINVAL, reason
 * SERVER. A token is 16 to 512 characters of printable ASCII, as in the server's token files (whose
 * line end is not part of it); else PACKD_EINVAL, reason TOKEN, with a text that does not show it.
 *
 * TLS is spoken to host:port where any of on, ca and cert is set, never over a Unix socket. The
 * files are PEM and read once, at open. PACKD_EINVAL, reason TLS: one cannot be read, or a
 * certificate comes without its key. */
struct packd_tls {
    bool on;
    const char *ca;          /* authorities for the server's certificate; NULL: the system's */
    const char *cert, *key;  /* what the client shows (mutual TLS); NULL: nothing */
    const char *server_name; /* expected in the server's certificate; NULL: the host of `server` */
};

/* ---- producer -------------------------------------------------------------------------------- */

struct packd_reject {
    uint64_t seq;       /* first sample refused */
    uint64_t count;     /* so many from it on */
    const char *reason; /* OVER_LENGTH, ... */
    const char *text;
};

struct packd_producer_options {
    const char *server; /* host:port or unix:/path */
    const char *token;  /* bearer token */
    struct packd_tls tls;
    const char *feed;       /* NULL: "default" */
    const char *stream;     /* required */
    const char *source;     /* NULL: "default" */
    const char *producer;   /* free text for the server's status; NULL: host and process */
    const char *content_id; /* what is being read, at most 255 bytes; NULL: "" */
    const char *log_id;     /* expected log, NULL: any */
    uint32_t vocab_size;    /* 0: not stated */
    const void *tokenizer_digest;
    size_t tokenizer_digest_bytes;
    bool allow_shifted_looking_labels;
    size_t buffer_bytes; /* samples taken and not yet durable, at most; 0: 64 MiB */
    size_t block_bytes;  /* tokens, labels and tensors of a block, about; 0: 512 KiB */
    uint32_t linger_ms;  /* a block that is not full is sent after this time; 0: 20 */
    int64_t timeout_ms;  /* PACKD_TIMEOUT_DEFAULT stands for this; 0: 60,000 */
    /* Samples the server refused; called inside put, flush, end_stream and close. NULL: only
     * counted. */
    void (*on_reject)(void *ctx, const struct packd_reject *reject);
    void *ctx;
};

enum packd_dtype {
    PACKD_DTYPE_BOOL = 1,
    PACKD_DTYPE_UINT8,
    PACKD_DTYPE_INT8,
    PACKD_DTYPE_UINT16,
    PACKD_DTYPE_INT16,
    PACKD_DTYPE_UINT32,
    PACKD_DTYPE_INT32,
    PACKD_DTYPE_UINT64,
    PACKD_DTYPE_INT64,
    PACKD_DTYPE_FLOAT16,
    PACKD_DTYPE_BFLOAT16,
    PACKD_DTYPE_FLOAT32,
    PACKD_DTYPE_FLOAT64
};

/* A media span of a sample: `length` placeholder tokens from `offset` that stand for an image or a
 * video. Never cut: it is served whole or not at all. Spans ascend and do not overlap. Where no
 * tensor of unit patch carries the patches, max_patches of the feed or, without it, 4,096 patches
 * and 64 frames a token are the bound (TOO_LARGE). */
struct packd_span {
    const char *view;                /* [A-Za-z0-9_-]{1,64}, say the camera; NULL: "default" */
    uint32_t offset, length;         /* tokens; length >= 1 */
    uint32_t patches;                /* vision patches; 0 with a grid: t*h*w */
    uint32_t grid_t, grid_h, grid_w; /* in patches; all 0: no grid (not with M-RoPE positions) */
    double t_scale; /* M-RoPE: frame i has the time offset floor(i * t_scale); 0 stands for 1 */
};

enum packd_axis {
    PACKD_AXIS_TOKEN = 1, /* one element per token: served [rows, width, dims...] */
    PACKD_AXIS_RAGGED,    /* any number: served concatenated, with <name>_cu_seqlens */
    PACKD_AXIS_SAMPLE     /* one: served stacked */
};

/* What the elements of a ragged tensor belong to: a dropped span takes its own along. */
enum packd_unit {
    PACKD_UNIT_SAMPLE, /* the sample as a whole */
    PACKD_UNIT_SPAN,   /* one per span */
    PACKD_UNIT_PATCH,  /* span.patches per span */
    PACKD_UNIT_RUN     /* run_counts[s] for span s: bytes of a JPEG, of a URI */
};

/* A named tensor of a sample. Everything but data, elements and run_counts is the feed's from the
 * name's first use on; another value later is BAD_TENSOR. Values are served as they were pushed. */
struct packd_tensor {
    const char *name; /* [A-Za-z0-9_]{1,48}, not that of a built-in array */
    enum packd_dtype dtype;
    enum packd_axis axis;
    uint32_t ndim; /* of one element, at most 3 (token: 2) */
    uint32_t dims[3];
    const void *data; /* `elements` elements, one after the other, little-endian */
    size_t elements;  /* token: the sample's count; sample: 1 */
    enum packd_unit unit;
    const uint32_t *run_counts;    /* unit RUN: one per span of the sample, 0 for other views */
    const char *const *span_views; /* units of spans: only spans of these views; NULL: all */
    size_t span_view_count;
    bool align_input; /* token: describes the token as an input; false: as a target, like labels */
    const void *pad_value; /* one scalar; NULL: 0 */
    bool is_loss;          /* a training target with a loss total of its own */
    const char *pad_mask;  /* is_loss: the BOOL or UINT8 tensor of the sample in which other than 0
                              means padding; NULL: every element counts */
};

/* One sample. labels and loss_mask have `count` entries and describe token i as a target,
 * unshifted: packd does every shift. Borrowed for the call. */
struct packd_sample {
    const int32_t *tokens;
    size_t count;             /* >= 1 */
    const int32_t *labels;    /* NULL: the tokens, and no loss on media spans */
    const uint8_t *loss_mask; /* 0: no target; NULL: all are */
    bool has_weight;          /* false: weight is 1 */
    float weight;             /* finite, >= 0 */
    struct packd_bytes key;   /* at most 255 bytes, given back with the batch */
    struct packd_bytes group; /* likewise */
    uint64_t version;
    const struct packd_span *spans; /* NULL: none */
    size_t span_count;
    /* patches per token of all spans, a square (4 for a 2x2 merger); 0: unchecked */
    uint32_t merge;
    const struct packd_tensor *tensors; /* at most 64, names distinct; NULL: none */
    size_t tensor_count;
};

struct packd_producer_stats {
    uint64_t next_seq;                /* of the next sample put */
    uint64_t first_seq;               /* where the server stood at open */
    uint64_t durable_seq;             /* every sample below it is durable (or refused) */
    uint64_t rejected;                /* samples refused, seen by this object */
    uint64_t duplicates;              /* samples the server had already */
    uint64_t blocks_sent, bytes_sent; /* repeats included */
    uint64_t reconnects;
    size_t buffered_bytes;
    uint64_t credit_bytes; /* the server's grant that is left */
    bool connected, stream_ended;
    char log_id[40];
    uint64_t seq_len, vocab_size; /* of the feed */
    uint64_t max_sample_bytes;
    /* Why nothing moves: "STATE: text" of the server, where the credit does not grow, or
     * "REASON: text" of the failure, where there is no connection; "" where all is well. */
    char waiting[160];
    /* Samples below first_seq that the server refused when they were pushed: they count as durable
     * and are not stored. Their reasons, each once, with ", " between. 0 and "" of a server that
     * does not tell. */
    uint64_t rejected_before;
    char rejected_for[128];
};

struct packd_producer;

/* Connects and waits for the server's Welcome. The first sample put gets seq `first_seq` of the
 * stats: a caller who reads the same data again skips that many samples.
 * PACKD_EINVAL, _ENOMEM, _ETIMEDOUT (no server), _ENOTFOUND (feed), _EEXIST (other content_id),
 * _EMISMATCH (other source, feed, vocabulary, tokenizer or log), _EUNAVAIL never: it is waited out.
 */
int packd_producer_open(const struct packd_producer_options *options, struct packd_producer **out,
                        struct packd_error *error);
/* Takes one sample (copied). Waits only while the buffer is full.
 * PACKD_EINVAL: no tokens, bad weight or key. _ELIMIT: larger than the server takes. _ETIMEDOUT:
 * the buffer stayed full. _EFENCED and other final errors. Of a failed call nothing was taken. */
int packd_producer_put(struct packd_producer *producer, const struct packd_sample *sample,
                       int64_t timeout_ms, struct packd_error *error);
/* Takes samples in order; *taken (may be NULL) says how many, also on failure. As put. */
int packd_producer_put_many(struct packd_producer *producer, const struct packd_sample *samples,
                            size_t count, int64_t timeout_ms, size_t *taken,
                            struct packd_error *error);
/* Waits until everything put is durable. */
int packd_producer_flush(struct packd_producer *producer, int64_t timeout_ms,
                         struct packd_error *error);
/* flush, then ends the stream for good. */
int packd_producer_end_stream(struct packd_producer *producer, int64_t timeout_ms,
                              struct packd_error *error);
/* flush, then ends the whole feed, whoever else pushes to it. *already (may be NULL): it had ended.
 */
int packd_producer_end_feed(struct packd_producer *producer, int64_t timeout_ms, bool *already,
                            struct packd_error *error);
uint64_t packd_producer_next_seq(struct packd_producer *producer);
void packd_producer_stats(struct packd_producer *producer, struct packd_producer_stats *stats);
/* Ends the blocking call that runs, or else the next one, with PACKD_ECANCELED. */
void packd_producer_interrupt(struct packd_producer *producer);
/* Ends the blocking calls that run, and all later ones, with PACKD_ECANCELED, reason STOPPED; what
 * is not durable is given up. For a program that must wait for the calls of its other threads
 * before it may close. Any thread, also inside a callback. */
void packd_producer_stop(struct packd_producer *producer);
/* flush with this timeout (0: give up what is not durable), then frees the object in any case.
 * Returns flush's result. NULL is allowed. */
int packd_producer_close(struct packd_producer *producer, int64_t timeout_ms,
                         struct packd_error *error);

/* ---- trainer --------------------------------------------------------------------------------- */

enum packd_arrays {
    PACKD_ARRAYS_CORE = 0,
    PACKD_ARRAYS_ALL = 1
}; /* what travels; never what is seen */
enum packd_kind { PACKD_KIND_TRAINER = 0, PACKD_KIND_READER = 1 };
enum packd_labels { PACKD_LABELS_ANY = 0, PACKD_LABELS_UNSHIFTED = 1, PACKD_LABELS_SHIFTED = 2 };
enum packd_loss { PACKD_LOSS_TOKEN = 1, PACKD_LOSS_SAMPLE = 2 };
enum packd_start {
    PACKD_START_COMMIT = 0, /* behind the job's last commit */
    PACKD_START_FIRST = 1,  /* no checkpoint: at the lowest step */
    PACKD_START_RESUME = 2  /* behind resume_step, the last step in the loaded checkpoint */
};

/* What a job waits for, while next() has nothing to return. */
struct packd_waiting {
    bool waiting; /* false: the rest is empty */
    int reason;   /* packd.v1.WaitReason */
    char reason_name[40];
    uint64_t step;
    uint32_t micro;
    char streams[160]; /* names, with commas; streams_total says how many there are */
    uint32_t streams_total;
    char sources[160];
    uint64_t samples_needed, tokens_needed, packs_missing; /* 0: none, or not known */
    uint64_t since_unix_ms;
    char text[240];
};

/* The server's hint to save a checkpoint and commit early: the log fills up; or, steps_left 0, the
 * job waits (WAIT_COMMIT) until it does. */
struct packd_commit_needed {
    bool needed;
    uint64_t steps_left; /* about so many more fit */
    uint64_t first_step; /* the lowest step held */
    uint64_t bytes_held, bytes_per_step, bytes_max;
};

struct packd_job_options {
    const char *server;
    const char *token;
    struct packd_tls tls;
    const char *feed;   /* NULL: "default" */
    const char *job;    /* required */
    const char *client; /* free text; NULL: host and process */
    /* one per launch of the training program; NULL: join the current world */
    const char *world_token;
    const char *log_id; /* of the checkpoint, NULL: any */
    uint32_t dp_size;   /* required */
    uint32_t dp_rank;
    uint32_t rows;             /* packs per batch; 0: 1 */
    uint32_t accum;            /* micro-steps per step; 0: 1 */
    uint32_t step_packs;       /* 0: dp_size * rows * accum */
    uint32_t segment_multiple; /* 2 x context-parallel x tensor-parallel size; 0: 1 */
    uint32_t commit_every;     /* steps between commits, as intended; 0: not stated */
    bool regroup;              /* accept another step_packs, at the last commit */
    /* For training that saves no checkpoints: dp_rank 0 commits, inside next, what lies so many
     * steps behind the last one returned whole. 0: not. A run that ends goes on at most so far
     * back. */
    uint32_t auto_commit;
    enum packd_kind kind;
    enum packd_arrays arrays;
    enum packd_labels labels; /* what the trainer expects */
    enum packd_start start;
    uint64_t resume_step;
    uint64_t steps_max; /* stop (PACKD_EEND) behind so many step numbers; 0: at the feed's end */
    uint32_t prefetch_batches; /* received ahead of next(); 0: 2 */
    size_t prefetch_bytes;     /* and at most so many bytes of them, but one batch; 0: 1 GiB */
    int64_t timeout_ms;        /* 0: 60,000 */
    /* Called inside next when the reason of a wait changes, and when a commit is needed; they may
     * call packd_job_commit. NULL: not. */
    void (*on_waiting)(void *ctx, const struct packd_waiting *waiting);
    void (*on_commit_needed)(void *ctx, const struct packd_commit_needed *needed);
    void *ctx;
    /* Memory of the payloads; NULL: the library's. alignment is a power of two, at least 64. Called
     * from the object's thread and from release; must not call into libpackd. */
    void *(*memory_alloc)(void *ctx, size_t bytes, size_t alignment);
    void (*memory_free)(void *ctx, void *memory, size_t bytes);
    void *memory_ctx;
};

/* What the job has agreed on with the server. */
struct packd_spec {
    uint32_t step_packs, dp_size, rows, accum;
    uint32_t seq_len;
    char width[8]; /* fixed | step | batch */
    uint32_t widths[16];
    uint32_t width_count;
    int32_t pad_id;
    enum packd_labels labels;
    enum packd_loss loss_weight;
    uint32_t seg_align, total_align, pad_segment, max_segments, fixed_segments, segment_multiple;
    uint32_t vocab_size;
    bool mrope;
    char last_step[8];        /* pad | drop */
    uint64_t max_batch_bytes; /* of built-in arrays; images and tensors come on top */
};

struct packd_job_info {
    struct packd_spec spec;
    char log_id[40];
    char server_version[40];
    uint64_t incarnation, generation;
    uint64_t first_step;    /* where this object began */
    uint64_t lowest_step;   /* the lowest one in the log, at the last (re)open */
    int64_t committed_step; /* -1: none */
    int64_t returned_step;  /* highest step returned completely by next; -1: none */
    uint64_t next_step;     /* the batch next() returns next, where no step is skipped */
    uint32_t next_micro;
    uint64_t batches, payload_bytes, received_bytes; /* returned by next; received on the wire */
    uint64_t reopens;
    uint32_t capacity_batches; /* prefetch, as limited by bytes; 1 until a batch has begun */
    bool created;
};

struct packd_end {
    bool ended;
    int64_t last_step; /* -1: the job has no step at all */
    uint64_t packs, samples, row_padding_packs, dropped_packs;
};

/* Bytes of one element; 0 for a value outside the enum. */
size_t packd_dtype_bytes(enum packd_dtype dtype);
/* safetensors' name: "I32", "F32", "BF16", ...; "?" for a value outside the enum. */
const char *packd_dtype_name(enum packd_dtype dtype);

enum packd_attention {
    PACKD_ATTENTION_UNKNOWN = 0, /* of a server that does not say */
    PACKD_ATTENTION_VARLEN = 1,  /* over the segments of cu_seqlens */
    PACKD_ATTENTION_FIXED = 2    /* over whole rows: varlen would spare next to nothing */
};

/* A view into the batch's payload: little-endian, row-major, at a multiple of 64 bytes. */
struct packd_array {
    const char *name;
    enum packd_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape;  /* ndim entries */
    void *data;             /* writable; the caller's until release */
    uint64_t offset, bytes; /* in the payload */
    uint64_t digest;        /* XXH3-64 of the bytes, verified */
    bool derived;           /* rebuilt here and not received */
};

struct packd_loss_total {
    const char *name; /* "tokens", then one per tensor declared as a loss */
    int64_t count;
    double weight;
};

/* real_tokens + tail_padding + gap + row_padding = positions. */
struct packd_totals {
    uint64_t real_tokens, tail_padding, gap, row_padding;
    uint64_t overlap_tokens, samples, segments, attention_cost, patches;
    int64_t loss_tokens; /* of "tokens" */
    double loss_weight;
    const struct packd_loss_total *loss;
    size_t loss_count;
};

/* One row per real segment. A column is NULL where all its values are 0 (bytes: empty). */
struct packd_samples {
    size_t count;
    const char *const *streams; /* names used by `stream` */
    size_t stream_names;
    const char *const *sources;
    size_t source_names;
    const uint32_t *stream;
    const uint64_t *seq;
    const uint32_t *part, *epoch, *source;
    const uint64_t *version;
    const struct packd_bytes *key, *group;
    const uint32_t *offset, *length;
    const uint64_t *digest;
    const uint32_t *flags;
    const float *loss_weights;
    const uint32_t *loss_tokens;
};

/* About one delivery; times in unix ms, 0: not known. */
struct packd_delivery {
    uint64_t incarnation, generation;
    int verdict; /* 1: structural check passed; 2: attention probe too */
    const char *backend, *device;
    uint64_t planned_unix_ms, built_unix_ms, validated_unix_ms, sent_unix_ms;
    uint32_t builds;
    bool first;
};

/* A batch: everything in it, and everything it points to, is valid until release. */
struct packd_batch {
    const char *feed, *job;
    uint64_t step;
    uint32_t micro, dp_rank;
    uint32_t rows, width; /* R, W */
    uint32_t step_packs, dp_size, accum;
    uint32_t n_segments, n_real_segments;
    uint32_t max_seqlen, max_seqlen_real, max_seqlen_padded;
    uint32_t fixed_segments;
    int32_t pad_id;
    enum packd_labels labels;
    enum packd_loss loss_weight_policy;
    const int64_t *packs; /* R pack numbers, -1: a row of padding */
    struct packd_totals batch_totals, step_totals;
    struct packd_samples samples;
    uint64_t config_digest, plan_digest;
    uint32_t planner_version;
    uint32_t width_bound;     /* the width of a padded job, which `width` is compared with */
    uint64_t saved_positions; /* of all rows, that the smaller width spares */
    enum packd_attention attention_path; /* a hint for trainers that have both kernels */
    const char *attention_why;           /* for people */
    const struct packd_array *arrays;    /* in payload order */
    size_t array_count;
    void *payload; /* one allocation, 4096-byte aligned, that all arrays lie in */
    uint64_t payload_bytes;
    uint64_t received_bytes;   /* of the payload, on the wire */
    struct packd_bytes header; /* the deterministic header (packd.v1.BatchHeader), as sent */
    struct packd_delivery delivery;
};

struct packd_job;

/* Joins the job, creating it at first, and begins to prefetch.
 * PACKD_EINVAL, _ENOMEM, _ETIMEDOUT, _ENOTFOUND (feed), _EMISMATCH (job spec, rank, log),
 * _EFENCED (this world has been superseded), _ELIMIT (batch too large), _ERANGE (resume too early).
 */
int packd_job_open(const struct packd_job_options *options, struct packd_job **out,
                   struct packd_error *error);
/* The next batch of this rank, in (step, micro) order; to be given back with packd_batch_release.
 * PACKD_EEND: behind the last batch, reason END_OF_FEED or STEP_LIMIT. _ETIMEDOUT: the text says
 * what the server waits for, or that it cannot be reached. _EFENCED, _ECORRUPT, _ERANGE, ...:
 * final. */
int packd_job_next(struct packd_job *job, int64_t timeout_ms, const struct packd_batch **batch,
                   struct packd_error *error);
/* The view called `name`, or NULL. */
const struct packd_array *packd_batch_array(const struct packd_batch *batch, const char *name);
/* The deterministic header as one JSON object (NUL-terminated, to be freed with packd_free), NULL
 * when memory is short. Field names as in packd.v1; fixed64 as 16 hex digits; bytes as text where
 * they are UTF-8, else {"hex": "..."}. */
char *packd_batch_header_json(const struct packd_batch *batch);
/* Any thread, also after close. NULL is allowed. */
void packd_batch_release(const struct packd_batch *batch);
/* States that steps up to `step` are in a saved checkpoint. Monotonic; a repeat is fine. Reasons of
 * failure: COMMIT_BEYOND_FETCHED (a step this object has not returned completely), EFENCED. */
int packd_job_commit(struct packd_job *job, uint64_t step, int64_t timeout_ms,
                     struct packd_error *error);
void packd_job_info(struct packd_job *job, struct packd_job_info *info);
void packd_job_waiting(struct packd_job *job, struct packd_waiting *waiting);
void packd_job_commit_needed(struct packd_job *job, struct packd_commit_needed *needed);
void packd_job_end(struct packd_job *job, struct packd_end *end);
void packd_job_interrupt(struct packd_job *job);
/* Ends next and commit where they run, and all later ones, with PACKD_ECANCELED; a commit under way
 * may or may not have happened. For a program that must wait for the calls of its other threads
 * before it may close. Any thread, also inside a callback. */
void packd_job_stop(struct packd_job *job);
/* Stops at once and frees. Batches not released stay valid. NULL is allowed. */
void packd_job_close(struct packd_job *job);

/* ---- operator -------------------------------------------------------------------------------- */

struct packd_admin_options {
    const char *server;
    const char *token;
    struct packd_tls tls;
    int64_t timeout_ms; /* 0: 10,000 */
};

struct packd_admin;

/* No call is made yet. */
int packd_admin_open(const struct packd_admin_options *options, struct packd_admin **out,
                     struct packd_error *error);
void packd_admin_close(struct packd_admin *admin);

/* Each call is one request, but status one for each page of the answer; UNAVAILABLE is tried again
 * until the time is over. *json (may be NULL) receives the whole reply as one JSON object, in the
 * form of packd_batch_header_json, to be freed with packd_free. feed NULL is "default", but in
 * status: all feeds. */
void packd_free(void *memory);
/* streams: list streams too, those with a name greater than streams_after (NULL: from the first).
 */
int packd_admin_status(struct packd_admin *admin, const char *feed, const char *job, bool streams,
                       const char *streams_after, int64_t timeout_ms, char **json,
                       struct packd_error *error);
int packd_admin_explain(struct packd_admin *admin, const char *feed, const char *job, uint64_t step,
                        uint32_t first_entry, int64_t timeout_ms, char **json,
                        struct packd_error *error);
/* packs 0: everything that is there. */
int packd_admin_flush(struct packd_admin *admin, const char *feed, uint64_t packs,
                      int64_t timeout_ms, char **json, struct packd_error *error);
int packd_admin_end_feed(struct packd_admin *admin, const char *feed, int64_t timeout_ms,
                         char **json, struct packd_error *error);
int packd_admin_skip_steps(struct packd_admin *admin, const char *feed, const char *job,
                           uint64_t first, uint64_t last, const char *why, int64_t timeout_ms,
                           char **json, struct packd_error *error);
/* A source and its weight, relative in tokens; 0: not drawn from while others have something. */
struct packd_source_weight {
    const char *source;
    uint64_t weight;
};
/* Every source of the feed, once. */
int packd_admin_set_mixture(struct packd_admin *admin, const char *feed,
                            const struct packd_source_weight *weights, size_t count,
                            int64_t timeout_ms, char **json, struct packd_error *error);
/* Which samples to leave out: those for which everything that is set holds. */
struct packd_sample_filter {
    const char *stream, *source;      /* NULL: any */
    bool has_first_seq, has_last_seq; /* with stream */
    uint64_t first_seq, last_seq;     /* inclusive */
    const void *group, *key;
    size_t group_bytes, key_bytes; /* 0: any */
    uint64_t version_below;        /* 0: any */
};
int packd_admin_skip_samples(struct packd_admin *admin, const char *feed,
                             const struct packd_sample_filter *filter, const char *why,
                             int64_t timeout_ms, char **json, struct packd_error *error);
int packd_admin_delete_stream(struct packd_admin *admin, const char *feed, const char *stream,
                              bool force, int64_t timeout_ms, char **json,
                              struct packd_error *error);
int packd_admin_delete_feed(struct packd_admin *admin, const char *feed, bool force,
                            int64_t timeout_ms, char **json, struct packd_error *error);
int packd_admin_delete_job(struct packd_admin *admin, const char *feed, const char *job, bool force,
                           int64_t timeout_ms, char **json, struct packd_error *error);
int packd_admin_drain(struct packd_admin *admin, bool undo, int64_t timeout_ms, char **json,
                      struct packd_error *error);
/* A commit stated by an operator instead of a trainer, in the job's current generation: `step`
 * counts as fetched. */
int packd_admin_commit(struct packd_admin *admin, const char *feed, const char *job, uint64_t step,
                       int64_t timeout_ms, char **json, struct packd_error *error);

#ifdef __cplusplus
}
#endif

#endif
