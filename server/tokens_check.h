/* That every segment of a finished batch holds its sample's tokens and tensors as they are in the
 * log.
 *
 * What is a whole sample's is compared with the digest taken when the sample was pushed; what is
 * less, cut or pruned, with the same bytes read from the log again. Tokens are compared while
 * packer/check.h, which knows no bytes of the log, walks over the batch, tensors behind it:
 * together they are the structural check. Owner's thread of the reader, inside its read
 * transaction. */
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
    const struct pd_bodies *bodies; /* those that verify what they copy */
    const struct pd_batch *batch;
    const struct pd_media *media;
    const struct pd_pack *const *rows;
    const uint8_t *payload;
};
/* For pd_check_input: compares tokens as *check says, which is borrowed. Errors as below. */
struct pd_check_tokens pd_tokens_check_tokens(struct pd_tokens_check *check);
/* The tensors of a batch that pd_check_batch has found in order against the same rows. PD_ECORRUPT
 * with *finding: the first segment that differs. PD_ENOMEM; what the log says, finding->text is
 * then empty. */
int pd_tokens_check_tensors(const struct pd_tokens_check *check,
                            struct pd_check_finding *finding) PD_MUST_CHECK;

#endif
