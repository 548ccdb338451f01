/* The version of the program, for --version, Status, metrics and panics. */
#ifndef PD_SERVER_VERSION_H
#define PD_SERVER_VERSION_H

#define PD_VERSION "0.1.0"

/* The commit it was built from, where the build was told: bazel build --define
 * PACKD_REVISION=... */
#ifndef PD_REVISION
#define PD_REVISION "unknown"
#endif

#endif
