/* Starts and stops the daemon of the process: a scratch directory, its configuration, its thread,
 * the ports file that tells that it serves. */
#include "tests/seam/daemon.h"

#include "base/check.h"
#include "tests/seam/seam.h"
#include "tests/unit/scratch.h"

#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 300
#define READY_TRIES 6000 /* of 10 ms: a minute, on a machine that does much else */

int packd_main(int argc, char **argv);

static struct {
    pthread_t thread;
    char config[PATH_BYTES], ports[PATH_BYTES], data[PATH_BYTES];
    char address[80], http[80];
    int status;
} daemon_of = {.status = -1};

static void *run(void *unused)
{
    char *argv[] = {(char *)"packd",        (char *)"--config",    daemon_of.config,
                    (char *)"--listen",     (char *)"127.0.0.1:0", (char *)"--http",
                    (char *)"127.0.0.1:0",  (char *)"--data-dir",  daemon_of.data,
                    (char *)"--ports-file", daemon_of.ports,       NULL};
    (void)unused;
    daemon_of.status = packd_main((int)PD_COUNT_OF(argv) - 1, argv);
    return NULL;
}

static bool read_ports(void)
{
    json_t *root = json_load_file(daemon_of.ports, 0, NULL);
    if (!root)
        return false;
    const char *address = json_string_value(json_array_get(json_object_get(root, "grpc"), 0));
    const char *http = json_string_value(json_object_get(root, "http"));
    PD_CHECK(address && http);
    snprintf(daemon_of.address, sizeof daemon_of.address, "%s", address);
    snprintf(daemon_of.http, sizeof daemon_of.http, "%s", http);
    json_decref(root);
    return true;
}

static void make_files(const char *config)
{
    const char *dir = scratch_dir();
    snprintf(daemon_of.config, sizeof daemon_of.config, "%s/c.yaml", dir);
    snprintf(daemon_of.ports, sizeof daemon_of.ports, "%s/ports", dir);
    snprintf(daemon_of.data, sizeof daemon_of.data, "%s/data", dir);
    FILE *file = fopen(daemon_of.config, "w");
    PD_CHECK(file && fputs(config, file) >= 0 && fclose(file) == 0);
}

/* Those that end the daemon are for its thread alone. */
static void block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    PD_CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
}

void seam_daemon_start(const char *config)
{
    if (seam_has_real_grpc())
        pd_panic(__FILE__, __LINE__, "libgrpc is loaded: a function of it is missing in the seam");
    make_files(config);
    block_signals();
    PD_CHECK(pthread_create(&daemon_of.thread, NULL, run, NULL) == 0);
    for (int i = 0; !read_ports(); i++) {
        if (i == READY_TRIES)
            pd_panic(__FILE__, __LINE__, "the daemon does not serve; its log lines tell why");
        usleep(10000);
    }
}

const char *seam_daemon_address(void)
{
    return daemon_of.address;
}

const char *seam_daemon_http(void)
{
    return daemon_of.http;
}

int seam_daemon_stop(void)
{
    PD_CHECK(kill(getpid(), SIGTERM) == 0);
    PD_CHECK(pthread_join(daemon_of.thread, NULL) == 0);
    scratch_clear();
    return daemon_of.status;
}
