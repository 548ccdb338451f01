/* Runs a fuzz target without libFuzzer: the corpora named on the command line (NAME.hex, one input
 * a line), then a fixed number of generated inputs. Any other file named is one input, such as
 * libFuzzer leaves, and is all that is run.
 *
 * Generated inputs are random bytes, short ones more often than long ones; the seed is printed and
 * PACKD_TEST_SEED sets it. It finds no deep bug; it keeps every target compiling, linked and alive
 * in each test run. */
#include "tests/unit/random.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Memory of exactly that size, so that overruns show under ASan. */
static int run_exact(const uint8_t *bytes, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);
    if (!exact)
        return 1;
    if (size > 0)
        memcpy(exact, bytes, size);
    int rc = LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    return rc;
}

static size_t from_hex(const char *line, uint8_t *to, size_t max)
{
    size_t size = 0;
    unsigned value;
    while (size < max && sscanf(line + 2 * size, "%2x", &value) == 1)
        to[size++] = (uint8_t)value;
    return size;
}

static int run_corpus(FILE *file)
{
    static char line[2 * INPUT_MAX + 2];
    static uint8_t bytes[INPUT_MAX];
    int rc = 0, count = 0;
    for (; rc == 0 && fgets(line, sizeof line, file); count++)
        rc = run_exact(bytes, from_hex(line, bytes, sizeof bytes));
    printf("%d inputs of the corpus\n", count);
    return rc != 0 || count == 0;
}

static int run_file(const char *path, int *corpora)
{
    static uint8_t bytes[1 << 20];
    const char *ending = strrchr(path, '.');
    bool corpus = ending && strcmp(ending, ".hex") == 0;
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    *corpora += corpus;
    int rc = corpus ? run_corpus(file) : run_exact(bytes, fread(bytes, 1, sizeof bytes, file));
    fclose(file);
    return rc;
}

static int run_generated(void)
{
    static uint8_t bytes[INPUT_MAX];
    uint64_t state = test_seed(1);
    printf("%d inputs\n", SMOKE_INPUTS);
    for (int i = 0; i < SMOKE_INPUTS; i++) {
        size_t size = (size_t)(test_random(&state) % (i % 8 == 0 ? INPUT_MAX : 256));
        for (size_t k = 0; k < size; k++)
            bytes[k] = (uint8_t)(test_random(&state) >> 32);
        if (run_exact(bytes, size) != 0)
            return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int corpora = 0;
    for (int i = 1; i < argc; i++)
        if (run_file(argv[i], &corpora) != 0)
            return 1;
    return argc - 1 > corpora ? 0 : run_generated();
}
