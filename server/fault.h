/* Faults planted on purpose, in the binary that tests use (//server:packd_faulty) and no other. */
#ifndef PD_SERVER_FAULT_H
#define PD_SERVER_FAULT_H

#include "server/serve.h"

/* Damages batches between layout and check, as the environment says; nothing without
 * PACKD_TEST_FAULT. Before pd_serve_start.
 *
 *   PACKD_TEST_FAULT            a name of gpu/probe_cases.h ("boundary off by one") or of fault.c
 *   PACKD_TEST_FAULT_FEED       index of the feed, default 0
 *   PACKD_TEST_FAULT_STEP       the step, default 0
 *   PACKD_TEST_FAULT_TIMES      so many builds of one batch of it, default 1: of the first that has
 *                               a place for the fault
 *   PACKD_TEST_FAULT_UNCHECKED  set: those builds go to the probe without the structural check
 *
 * An unknown name ends the process. */
void pd_fault_install(const struct pd_config *config, struct pd_serve *serve);

#endif
