/* Runs a fuzz target without libFuzzer: a fixed number of generated inputs, or the files named on
 * the command line.
 *
 * Inputs are random bytes, short ones more often than long ones; the seed is printed and PD_SEED
 * sets it. It finds no deep bug; it keeps every target compiling, linked and alive in each test
 * run. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define INPUT_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    static uint8_t bytes[1 << 20];
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return LLVMFuzzerTestOneInput(bytes, size);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (replay(argv[i]) != 0)
            return 1;
    if (argc > 1)
        return 0;
    const char *text = getenv("PD_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : 1, state = seed * 0x9E3779B97F4A7C15ULL | 1;
    printf("%d inputs from seed %llu\n", SMOKE_INPUTS, (unsigned long long)seed);
    for (int i = 0; i < SMOKE_INPUTS; i++) {
        size_t size = (size_t)(next(&state) % (i % 8 == 0 ? INPUT_MAX : 256));
        uint8_t *bytes =
            malloc(size > 0 ? size : 1); /* exact size, so that overruns show under ASan */
        if (!bytes)
            return 1;
        for (size_t k = 0; k < size; k++)
            bytes[k] = (uint8_t)(next(&state) >> 32);
        if (LLVMFuzzerTestOneInput(bytes, size) != 0)
            return 1;
        free(bytes);
    }
    return 0;
}
