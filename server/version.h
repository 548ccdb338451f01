/* The version of the program, for --version, Status, metrics and panics. */
#ifndef PD_SERVER_VERSION_H
#define PD_SERVER_VERSION_H

#define PD_VERSION "0.1.0"

#endif
