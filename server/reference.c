/* Prints the pages that are made from the tables in code:
 *
 *   bazel run //server:reference -- config  > docs/CONFIGURATION.md
 *   bazel run //server:reference -- metrics > docs/METRICS.md
 *   bazel run //server:reference -- sample  > a configuration file with every key at its default
 *
 * Tests compare the pages in docs/ with what this prints. */
#include "server/config.h"
#include "server/metrics.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*print)(FILE *out);
    } pages[] = {
        {"config", pd_config_reference},
        {"metrics", pd_metrics_reference},
        {"sample", pd_config_sample},
    };
    for (size_t i = 0; argc == 2 && i < sizeof pages / sizeof *pages; i++) {
        if (strcmp(argv[1], pages[i].name) == 0)
            return pages[i].print(stdout) != 0;
    }
    fputs("usage: reference config|metrics|sample\n", stderr);
    return 2;
}
