/* The directory of a test written in C: the one place where such a test makes files.
 *
 * It lies below TEST_TMPDIR, or /tmp where that is not set, and is removed with all in it when the
 * process exits with status 0. Any other status leaves it and names it on stderr; a signal just
 * leaves it. Test thread only. */
#ifndef PD_TESTS_UNIT_SCRATCH_H
#define PD_TESTS_UNIT_SCRATCH_H

/* The directory's path, made by the first call; under 256 bytes, and valid to the end of the
 * process. Ends the process when it cannot be made. */
const char *scratch_dir(void);

/* Removes all that is in it. */
void scratch_clear(void);

#endif
