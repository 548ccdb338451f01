/* That every segment of a finished batch holds its sample's tokens and tensors as they are in the
 * log.
 *
 * What is a whole sample's is compared with the digest taken when the sample was pushed; what is
 * less, cut or pruned, with the same bytes read from the log again. Together with packer/check.h,
 * which knows no bytes of the log, this is the structural check. Owner's thread of the reader,
 * inside its read transaction. */
#ifndef PD_SERVER_TOKENS_CHECK_H
#define PD_SERVER_TOKENS_CHECK_H

#include "packer/batch.h"
#include "packer/check.h"
#include "packer/layout.h"
#include "server/log.h"

struct pd_tokens_check {
    struct pd_log_reader *reader;
    uint32_t feed_index;
    const struct pd_layout_rules *rules;
    const struct pd_bodies *bodies;
    const struct pd_batch *batch;
    const struct pd_media *media;
    const struct pd_pack *const *rows;
    const uint8_t *payload;
};
/* Needs a batch that pd_check_batch has found in order against the same rows. PD_ECORRUPT with
 * *finding: the first segment that differs. PD_ENOMEM; what the log says, finding->text is then
 * empty. */
int pd_tokens_check(const struct pd_tokens_check *check,
                    struct pd_check_finding *finding) PD_MUST_CHECK;

#endif
