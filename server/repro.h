/* What is kept of a batch that failed its checks twice, so that somebody can look into it after the
 * log has gone on.
 *
 *   <log.path>/repros/<feed>-<job>-step<k>-micro<m>-rank<r>/
 *     finding.json   the batch, the rule, the place, the text; which packs; what was left out
 *     packd.yaml     the configuration in force
 *     plan.bin       the encoded packs of the step       (pack, entry of the step, bytes)
 *     heads.bin      heads of the batch's blocks         (block, 0, bytes)
 *     bodies.bin     tokens and pushed labels of the batch's samples   (block, index, bytes)
 *
 * A .bin file is a row of records: three little-endian u64 as named above, then so many bytes. With
 * labels, the second half of a body's bytes are the labels. packd_replay builds the batch from it
 * again.
 *
 * When full: at most PD_REPROS_MAX directories; a further one is not saved, and the log says so.
 * The files of one take at most PD_REPRO_BYTES_MAX; samples beyond are left out and counted. */
#ifndef PD_SERVER_REPRO_H
#define PD_SERVER_REPRO_H

#include "server/log.h"
#include "server/serve.h"

#define PD_REPROS_MAX 16
#define PD_REPRO_BYTES_MAX (256u << 20)

/* Borrowed as long as serve runs. */
struct pd_repro {
    const struct pd_config *config;
    struct pd_log *log;
};

/* A pd_repro_fn with a struct pd_repro as ctx; any assemble thread, several at a time. What cannot
 * be read of the log is left out; what cannot be written is said in the log. */
void pd_repro_save(void *repro, const struct pd_assemble_order *order,
                   const struct pd_check_finding *finding, char *path, size_t size);

#endif
