/* Input readers: files become samples, one at a time.
 *
 *   .jsonl .ndjson -    one JSON object a line
 *   .json               an array of objects (or JSON lines)
 *   .safetensors        one sample with media spans and named tensors (reader_media.h)
 *   anything else       plain text: the whole file is one sample
 *   directory           its files, depth first, by name; each as above
 *   NAME.gz             like NAME
 *
 * A UTF-8 byte order mark in front of JSON is passed over. A record holds `tokens` or `input_ids`
 * (integers), optionally labels, loss_mask, weight, key, group, version, spans (objects with view,
 * offset, length, patches, grid_t, grid_h, grid_w); or text, which becomes its UTF-8 bytes. Reads
 * through one growing line buffer; a .json array is held in memory whole. One thread. */
#ifndef PD_CLIENT_READER_H
#define PD_CLIENT_READER_H

#include "client/include/packd.h"

#include <signal.h>

#define PD_READER_LINE_MAX_BYTES (1u << 30)

struct pd_reader_options {
    /* Field names, comma separated, joined with a newline; NULL: chosen from the first record:
     * tokens, input_ids, text, content, else all its strings in document order. */
    const char *field;
    bool skip_bad; /* count bad records instead of failing */
    /* Set by a signal handler: a read that waits then ends with PACKD_ECANCELED. NULL: none. */
    const volatile sig_atomic_t *stop;
    const char *stdin_name; /* what "-" is called in texts; NULL: stdin */
};

struct pd_reader_counts {
    uint64_t records; /* read, bad and empty ones included */
    uint64_t samples;
    uint64_t empty_lines, empty_samples;
    uint64_t bad;
    uint64_t files, skipped_files; /* skipped: no regular file, binary, or packed but .gz */
    uint64_t bytes;                /* read */
};

struct pd_input;

/* Opens FILE, DIR or "-". PACKD_EIO: it cannot be read, or is neither (a pipe by name, a device);
 * PACKD_EINVAL: an empty field name. */
int pd_input_open(const char *path, const struct pd_reader_options *options, struct pd_input **out,
                  struct packd_error *error);
/* 1 and *sample (borrowed until the next call), 0 at the end, or negative: PACKD_EINVAL with reason
 * BAD_RECORD and a text of the form FILE:LINE: what was found, what was expected; PACKD_EIO. */
int pd_input_next(struct pd_input *input, struct packd_sample *sample, struct packd_error *error);
const struct pd_reader_counts *pd_input_counts(const struct pd_input *input);
/* The fields in use, for people ("question + answer"); "" before the first record. */
const char *pd_input_fields(const struct pd_input *input);
/* The newest bad record that was skipped, "" where there is none. */
const char *pd_input_last_bad(const struct pd_input *input);
void pd_input_close(struct pd_input *input);

/* XXH3-64 over the bytes of a file, or over names and bytes of a directory's files in reading
 * order. PACKD_EIO. */
int pd_input_digest(const char *path, uint64_t *digest, struct packd_error *error);

#endif
