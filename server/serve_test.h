/* Hooks for tests of serving, never set by the daemon: a batch damaged between layout and check. */
#ifndef PD_SERVER_SERVE_TEST_H
#define PD_SERVER_SERVE_TEST_H

#include "server/assemble.h"

/* Called on the assemble thread with the batch as laid out; may change anything in *batch and its
 * payload. True: this batch goes to the validator without the structural check. */
typedef bool pd_corrupt_fn(void *ctx, const struct pd_batch_key *key, struct pd_batch *batch,
                           uint8_t *payload);

void pd_assembler_set_corruption(struct pd_assembler *assembler, pd_corrupt_fn *corrupt, void *ctx);
/* Before pd_serve_start. */
void pd_serve_set_corruption(struct pd_serve *serve, pd_corrupt_fn *corrupt, void *ctx);

#endif
