/* What lies in the log beside blocks: the kinds of its records, and its tables of rows. */
#ifndef PD_SERVER_LOG_RECORDS_H
#define PD_SERVER_LOG_RECORDS_H

#include <stddef.h>
#include <stdint.h>

/* What a record says. Values are stored: never renumber. */
enum pd_record_type {
    PD_RECORD_FEED = 1,   /* a feed's configuration */
    PD_RECORD_STREAM = 2, /* a stream was opened for the first time */
    /* Lane, stream, first seq, count, first index, bytes held: the head lies under (feed, lane,
     * position). */
    PD_RECORD_BLOCK = 3,
    PD_RECORD_END_STREAM = 4,
    PD_RECORD_END_LANE = 5,
    PD_RECORD_END_FEED = 6,
    PD_RECORD_FLUSH = 7,
    PD_RECORD_HORIZON =
        8, /* packs planned so far and their digest: the same transaction holds the plans */
    PD_RECORD_OPEN_JOB = 9, /* a job was made, or its generation rose */
    PD_RECORD_COMMIT = 10,
    PD_RECORD_SKIP_STEPS = 11,
    PD_RECORD_DELETE_JOB = 12,
    PD_RECORD_MIXTURE = 20,
    PD_RECORD_SKIP_SAMPLES = 21,
    PD_RECORD_DELETE_STREAM = 22,
    PD_RECORD_DELETE_FEED = 23,
    PD_RECORD_TOKENIZER = 25,   /* the feed's tokenizer digest, as the first producer stated it */
    PD_RECORD_RULES = 24,       /* planning rules that the configuration has changed */
    PD_RECORD_RELEASE_JOB = 30, /* a job was silent for idle_release: it holds nothing */
    PD_RECORD_VIEW = 13,        /* number and name of a view, at its first use */
    PD_RECORD_TENSOR = 14,      /* a tensor's declaration with its number, at its first use */
};

struct pd_record {
    uint64_t position;
    enum pd_record_type type;
    uint32_t feed;
    const uint8_t *body; /* borrowed for the call */
    size_t size_bytes;
};

/* Rows keyed by two numbers. */
enum pd_table {
    PD_TABLE_STREAMS,
    PD_TABLE_SOURCES,
    PD_TABLE_FEEDS,
    PD_TABLE_JOBS,
    PD_TABLE_VIEWS,  /* feed, view: its name */
    PD_TABLE_TENSORS /* feed, tensor: struct pd_tensor_spec as it is */
};

#endif
