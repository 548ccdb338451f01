/* Saving a repro.
 *
 * Place in the flow: an assemble thread, between the second failed build of a batch and the halt of
 * its feed; it has no read transaction open, so one is opened here. Invariant: the files together
 * stay below PD_REPRO_BYTES_MAX, whatever the step holds. Nothing here decides anything about the
 * batch, and no failure here lets it through. */
#include "server/repro.h"

#include "base/log.h"
#include "server/assemble.h"
#include "server/serve_view.h"
#include "server/step_order.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PLAN, HEADS, BODIES, FILES };
static const char *const file_names[FILES] = {"plan.bin", "heads.bin", "bodies.bin"};

struct save {
    const struct pd_assemble_order *order;
    struct pd_log_reader *reader;
    struct pd_step_order steps;
    FILE *files[FILES];
    json_t *packs; /* numbers of the step's packs */
    uint64_t bytes, left_out;
    uint64_t last_block; /* whose head was written last */
    struct pd_buf scratch;
};

static void put_record(struct save *save, int file, uint64_t a, uint64_t b, const void *data,
                       size_t size)
{
    struct pd_buf head = {0};
    if (save->bytes + size + 24 > PD_REPRO_BYTES_MAX) {
        save->left_out++;
        return;
    }
    pd_buf_put_u64(&head, a);
    pd_buf_put_u64(&head, b);
    pd_buf_put_u64(&head, size);
    bool written = !head.failed && fwrite(head.data, 1, 24, save->files[file]) == 24 &&
                   fwrite(data, 1, size, save->files[file]) == size;
    pd_buf_fini(&head);
    save->bytes += size + 24;
    save->left_out += !written;
}

static void put_body(struct save *save, const struct pd_block_head *head,
                     const struct pd_segment *segment)
{
    if (segment->index >= head->count || head->lengths[segment->index] != segment->sample_tokens) {
        save->left_out++;
        return;
    }
    uint64_t offset = head->token_offsets[segment->index] * 4;
    size_t size = (size_t)segment->sample_tokens * 4;
    size_t all = head->has_labels ? 2 * size : size;
    uint8_t *data = save->bytes + all < PD_REPRO_BYTES_MAX ? malloc(all) : NULL;
    int rc = data ? pd_log_read_body(save->reader, segment->block, offset, size, data) : PD_ENOMEM;
    if (rc == 0 && head->has_labels)
        rc = pd_log_read_body(save->reader, segment->block,
                              head->token_offsets[head->count] * 4 + offset, size, data + size);
    if (rc == 0)
        put_record(save, BODIES, segment->block, segment->index, data, all);
    else
        save->left_out++;
    free(data);
}

static void put_segment(struct save *save, const struct pd_segment *segment)
{
    const struct pd_block_head *head;
    if (pd_log_read_head(save->reader, save->order->key.feed_index, segment->block, &head) != 0) {
        save->left_out++;
        return;
    }
    if (segment->block != save->last_block) {
        pd_buf_clear(&save->scratch);
        pd_block_head_encode(head, &save->scratch);
        if (!save->scratch.failed)
            put_record(save, HEADS, segment->block, 0, save->scratch.data,
                       save->scratch.size_bytes);
        save->last_block = segment->block;
    }
    put_body(save, head, segment);
}

/* One entry of the step: its pack, and what the pack is made of where it is the batch's. */
static void put_entry(struct save *save, uint32_t entry, bool of_batch)
{
    struct pd_pack pack = {0};
    uint64_t number = pd_step_order_pack(&save->steps, &save->order->place, entry);
    if (pd_log_read_pack(save->reader, save->order->key.feed_index, number, &pack) != 0) {
        save->left_out++;
        return;
    }
    pd_buf_clear(&save->scratch);
    pd_pack_encode(&pack, &save->scratch);
    if (!save->scratch.failed)
        put_record(save, PLAN, number, entry, save->scratch.data, save->scratch.size_bytes);
    if (of_batch)
        json_array_append_new(save->packs, json_integer((json_int_t)number));
    for (uint32_t i = 0; of_batch && i < pack.segment_count; i++)
        put_segment(save, &pack.segments[i]);
    pd_pack_fini(&pack);
}

static void put_step(struct save *save)
{
    const struct pd_assemble_order *order = save->order;
    uint64_t failed;
    uint32_t rows = order->spec->rows;
    uint32_t first = (order->key.micro * order->spec->dp_size + order->key.dp_rank) * rows;
    if (pd_step_order_load(&save->steps, save->reader, order->key.feed_index, &order->steps,
                           &order->place, &failed) != 0) {
        save->left_out++;
        return;
    }
    /* The batch's own first: where the bound is reached, the rest is left out. */
    for (uint32_t i = first; i < first + rows && i < order->place.pack_count; i++)
        put_entry(save, i, true);
    for (uint32_t i = 0; i < order->place.pack_count; i++)
        if (i < first || i >= first + rows)
            put_entry(save, i, false);
}

static bool write_finding(struct save *save, const struct pd_check_finding *finding,
                          const char *directory)
{
    const struct pd_assemble_order *order = save->order;
    const struct pd_batch_key *key = &order->key;
    char path[PD_REPRO_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/finding.json", directory);
    json_t *root = json_pack(
        "{s:s, s:s, s:I, s:I, s:i, s:i, s:{s:i, s:i, s:i}, s:s, s:s, s:i, s:i, s:I, s:I, s:s, s:O, "
        "s:I, s:I}",
        "feed", order->feed->name, "job", order->spec->name, "generation",
        (json_int_t)key->generation, "step", (json_int_t)key->step, "micro", (int)key->micro,
        "dp_rank", (int)key->dp_rank, "world", "dp_size", (int)order->spec->dp_size, "rows",
        (int)order->spec->rows, "accum", (int)order->spec->accum, "check",
        pd_check_name(finding->check), "kind", pd_check_finding_name(finding), "row",
        (int)finding->row, "position", (int)finding->position, "expected",
        (json_int_t)finding->expected, "found", (json_int_t)finding->found, "text", finding->text,
        "packs", save->packs, "bytes", (json_int_t)save->bytes, "records_left_out",
        (json_int_t)save->left_out);
    bool written = root && json_dump_file(root, path, JSON_INDENT(2)) == 0;
    json_decref(root);
    return written;
}

/* ---- places ---- */

static unsigned count_repros(const char *directory)
{
    unsigned count = 0;
    DIR *dir = opendir(directory);
    for (const struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return count;
}

/* Makes the directory and its files. False with errno. */
static bool open_files(struct save *save, const char *parent, const char *directory)
{
    char path[PD_REPRO_PATH_MAX + 32];
    if (mkdir(parent, 0700) != 0 && errno != EEXIST)
        return false;
    if (mkdir(directory, 0700) != 0 && errno != EEXIST)
        return false;
    for (int i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, file_names[i]);
        save->files[i] = fopen(path, "wbe");
        if (!save->files[i])
            return false;
    }
    return true;
}

static bool close_files(struct save *save)
{
    bool good = true;
    for (int i = 0; i < FILES; i++)
        if (save->files[i])
            good = fclose(save->files[i]) == 0 && good;
    return good;
}

static bool write_config(const struct pd_config *config, const char *directory)
{
    char path[PD_REPRO_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/packd.yaml", directory);
    FILE *out = fopen(path, "we");
    bool written = out && pd_config_print(config, out) == 0;
    return out && fclose(out) == 0 && written;
}

/* Everything between an open directory and its last file. */
static bool fill(struct save *save, struct pd_log *log, const struct pd_check_finding *finding,
                 const char *directory)
{
    struct pd_error error = {0};
    save->packs = json_array();
    if (pd_log_reader_new(log, &save->reader, &error) == 0) {
        if (pd_log_reader_begin(save->reader) == 0) {
            put_step(save);
            pd_log_reader_end(save->reader);
        }
        pd_log_reader_free(save->reader);
    }
    bool good = write_finding(save, finding, directory);
    json_decref(save->packs);
    pd_step_order_fini(&save->steps);
    pd_buf_fini(&save->scratch);
    return good;
}

void pd_repro_save(void *ctx, const struct pd_assemble_order *order,
                   const struct pd_check_finding *finding, char *path, size_t size)
{
    const struct pd_repro *repro = ctx;
    struct save save = {.order = order, .last_block = UINT64_MAX};
    char parent[PD_REPRO_PATH_MAX];
    struct stat there;
    int parent_size = snprintf(parent, sizeof parent, "%s/repros", repro->config->log_path);
    int path_size =
        snprintf(path, size, "%s/%s-%s-step%llu-micro%u-rank%u", parent, order->feed->name,
                 order->spec->name, (unsigned long long)order->key.step, order->key.micro,
                 order->key.dp_rank);
    const char *why = NULL;
    if (parent_size >= (int)sizeof parent || path_size >= (int)size)
        why = "the path of log.path is too long";
    else if (stat(path, &there) != 0 && count_repros(parent) >= PD_REPROS_MAX)
        why = "there are as many as are kept; remove old ones";
    else if (!open_files(&save, parent, path))
        why = strerror(errno);
    else if (!fill(&save, repro->log, finding, path))
        why = "finding.json cannot be written";
    else if (!write_config(repro->config, path))
        why = "packd.yaml cannot be written";
    if (!close_files(&save) && !why)
        why = strerror(errno);
    if (why) {
        pd_log(PD_LOG_ERROR, "repro_not_saved", "path=\"%s\" text=\"%s\"", path, why);
        path[0] = 0;
        return;
    }
    pd_log(PD_LOG_ERROR, "repro_saved", "path=\"%s\" bytes=%llu left_out=%llu", path,
           (unsigned long long)save.bytes, (unsigned long long)save.left_out);
}
