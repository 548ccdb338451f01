/* Pushes three samples: push [SERVER]. The README shows the lines between the marks. */
#include <packd.h>

#include <stdio.h>

static int push(const char *server)
{
    /* README: push */
    struct packd_error error = {0};
    struct packd_producer *producer;
    struct packd_producer_options options = {.server = server, .stream = "numbers"};
    if (packd_producer_open(&options, &producer, &error))
        return fprintf(stderr, "%s\n", error.text), 1;
    int32_t tokens[] = {17, 4, 9, 23, 5};
    for (size_t n = 3; n <= 5; n++) /* three samples of 3, 4 and 5 tokens */
        if (packd_producer_put(producer, &(struct packd_sample){.tokens = tokens, .count = n},
                               PACKD_TIMEOUT_DEFAULT, &error))
            return fprintf(stderr, "%s\n", error.text), 1;
    int rc = packd_producer_close(producer, PACKD_TIMEOUT_DEFAULT, &error); /* until durable */
    /* README: end */
    if (rc)
        fprintf(stderr, "%s\n", error.text);
    return rc != 0;
}

int main(int argc, char **argv)
{
    return push(argc > 1 ? argv[1] : PACKD_DEFAULT_SERVER);
}
