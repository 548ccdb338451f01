/* Places for connections, and packd's accept4 in front of a listening socket: nobody gets in
 * without a place, places come back, and no error of accept reaches gRPC. */
#include "server/rpc/accept.h"

#include "base/bytes.h"
#include "server/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#define WAIT_MS 20000
#define CROWD 1500 /* more than accept.c refuses in one call, fewer than the kernel queues */

static struct pd_config config;
static struct pd_connections *connections;

/* A listening socket on any port of the address; *address gets it. */
static int listen_on(const char *host, struct sockaddr_in *address)
{
    socklen_t size = sizeof(*address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET};
    assert_int_equal(inet_pton(AF_INET, host, &address->sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)address, sizeof(*address)), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)address, &size), 0);
    return fd;
}

/* A client's socket, bound to `from` first: 127.0.0.0/8 is all this machine. */
static int connect_from(const char *from, const struct sockaddr_in *to)
{
    struct sockaddr_in own = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(inet_pton(AF_INET, from, &own.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)to, sizeof(*to)), 0);
    return fd;
}

static void wait_readable(int fd)
{
    struct pollfd events = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&events, 1, WAIT_MS), 1);
}

static int accept_one(int listener)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof(peer);
    wait_readable(listener);
    return pd_accept4(listener, (struct sockaddr *)&peer, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

static void assert_taken(int listener, int *accepted)
{
    *accepted = accept_one(listener);
    assert_true(*accepted >= 0);
}

/* gRPC is told that nobody is there, and the client that it was refused. */
static void assert_refused(int listener, int client)
{
    char byte;
    assert_int_equal(accept_one(listener), -1);
    assert_int_equal(errno, EAGAIN);
    wait_readable(client);
    assert_true(read(client, &byte, 1) <= 0);
}

/* As gRPC ends a connection. */
static void end(int accepted)
{
    (void)shutdown(accepted, SHUT_RDWR);
    assert_int_equal(close(accepted), 0);
}

static void start(uint32_t max, uint32_t peer_max)
{
    struct pd_error error;
    config.connections_max = max;
    config.peer_connections_max = peer_max;
    assert_int_equal(pd_connections_new(&config, &connections, &error), 0);
    assert_int_equal(pd_accept_open(connections, &error), 0);
}

static void learn(enum pd_door door)
{
    struct pd_error error;
    assert_int_equal(pd_accept_learn(door, &error), 0);
}

static int set_up(void **state)
{
    (void)state;
    return pd_config_default(&config);
}

static int tear_down(void **state)
{
    (void)state;
    pd_accept_close();
    pd_connections_free(connections);
    connections = NULL;
    pd_config_fini(&config);
    return 0;
}

static void a_full_door_refuses_and_places_come_back(void **state)
{
    struct sockaddr_in address;
    int clients[4], accepted[3];
    (void)state;
    start(2, 2);
    int listener = listen_on("127.0.0.1", &address);
    learn(PD_DOOR_MAIN);
    for (int i = 0; i < 2; i++) {
        clients[i] = connect_from("127.0.0.1", &address);
        assert_taken(listener, &accepted[i]);
    }
    assert_int_equal(pd_connections_open(connections, PD_DOOR_MAIN), 2);
    clients[2] = connect_from("127.0.0.1", &address);
    assert_refused(listener, clients[2]);
    end(accepted[0]);
    clients[3] = connect_from("127.0.0.1", &address);
    assert_taken(listener, &accepted[2]);
    /* What the client does alone ends nothing: gRPC has to see it. */
    (void)close(clients[1]);
    pd_connections_look(connections);
    assert_int_equal(pd_connections_open(connections, PD_DOOR_MAIN), 2);
    /* Shut and not yet closed it still has its descriptors. */
    (void)shutdown(accepted[1], SHUT_RDWR);
    for (int i = 0; i < 3; i++)
        pd_connections_look(connections);
    assert_int_equal(pd_connections_open(connections, PD_DOOR_MAIN), 2);
    end(accepted[1]);
    end(accepted[2]);
    pd_connections_look(connections);
    assert_int_equal(pd_connections_open(connections, PD_DOOR_MAIN), 0);
    (void)close(clients[0]);
    (void)close(clients[2]);
    (void)close(clients[3]);
    (void)close(listener);
}

static void a_host_has_its_share(void **state)
{
    struct sockaddr_in address;
    int accepted[3];
    (void)state;
    start(8, 1);
    int listener = listen_on("127.0.0.1", &address);
    learn(PD_DOOR_MAIN);
    int first = connect_from("127.0.0.2", &address);
    assert_taken(listener, &accepted[0]);
    int second = connect_from("127.0.0.2", &address);
    assert_refused(listener, second);
    int other = connect_from("127.0.0.3", &address);
    assert_taken(listener, &accepted[1]);
    end(accepted[0]);
    int third = connect_from("127.0.0.2", &address);
    assert_taken(listener, &accepted[2]);
    end(accepted[1]);
    end(accepted[2]);
    (void)close(first);
    (void)close(second);
    (void)close(third);
    (void)close(other);
    (void)close(listener);
}

static void doors_have_places_of_their_own(void **state)
{
    struct sockaddr_in address, admin_address, http_address;
    int accepted[3];
    (void)state;
    int http = listen_on("127.0.0.1", &http_address);
    config.listen_admin_count = 1; /* a configuration that has an address there */
    start(1, 1);
    config.listen_admin_count = 0;
    int listener = listen_on("127.0.0.1", &address);
    learn(PD_DOOR_MAIN);
    int admin = listen_on("127.0.0.1", &admin_address);
    learn(PD_DOOR_ADMIN);
    int first = connect_from("127.0.0.1", &address);
    assert_taken(listener, &accepted[0]);
    int refused = connect_from("127.0.0.1", &address);
    assert_refused(listener, refused);
    int operators = connect_from("127.0.0.1", &admin_address);
    assert_taken(admin, &accepted[1]);
    assert_int_equal(pd_connections_open(connections, PD_DOOR_ADMIN), 1);
    assert_int_equal(pd_connections_max(connections, PD_DOOR_ADMIN), PD_DOOR_CONNECTIONS);
    int scraper = connect_from("127.0.0.1", &http_address);
    assert_taken(http, &accepted[2]); /* not gRPC's: nobody counts it */
    assert_int_equal(pd_connections_open(connections, PD_DOOR_MAIN), 1);
    for (int i = 0; i < 3; i++)
        end(accepted[i]);
    (void)close(first);
    (void)close(refused);
    (void)close(operators);
    (void)close(scraper);
    (void)close(admin);
    (void)close(listener);
    (void)close(http);
}

static void want_of_descriptors_is_no_error(void **state)
{
    struct sockaddr_in address;
    struct rlimit before, none;
    int accepted;
    (void)state;
    start(8, 8);
    int listener = listen_on("127.0.0.1", &address);
    learn(PD_DOOR_MAIN);
    int client = connect_from("127.0.0.1", &address);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int lowest = fcntl(0, F_DUPFD_CLOEXEC, 0);
    assert_true(lowest >= 0);
    (void)close(lowest);
    none = (struct rlimit){.rlim_cur = (rlim_t)lowest, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_refused(listener, client);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    int later = connect_from("127.0.0.1", &address);
    assert_taken(listener, &accepted);
    end(accepted);
    (void)close(client);
    (void)close(later);
    (void)close(listener);
}

/* A connection's descriptor is below the bound, or it is refused: none goes unwatched. */
static void a_descriptor_beyond_the_bound_is_refused(void **state)
{
    struct sockaddr_in address;
    struct rlimit before, more;
    static int held[8192];
    int count = 0, accepted;
    (void)state;
    start(8, 8);
    int listener = listen_on("127.0.0.1", &address);
    learn(PD_DOOR_MAIN);
    int bound = (int)pd_connections_descriptors(connections);
    assert_true(bound < 8192 - 64);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    more = (struct rlimit){.rlim_cur = before.rlim_max, .rlim_max = before.rlim_max};
    if (more.rlim_cur < 8192) {
        print_message("SKIP: ulimit -Hn is below 8192\n");
        skip();
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &more), 0);
    int first = connect_from("127.0.0.1", &address);
    do
        held[count] = fcntl(0, F_DUPFD_CLOEXEC, 0);
    while (held[count++] < bound - 1);
    assert_refused(listener, first);
    while (count > 0)
        (void)close(held[--count]);
    int second = connect_from("127.0.0.1", &address);
    assert_taken(listener, &accepted);
    end(accepted);
    (void)close(first);
    (void)close(second);
    (void)close(listener);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* What has been counted under a reason. */
static unsigned long refused_for(const char *reason)
{
    struct pd_buf page = {0};
    char name[80];
    assert_int_equal(pd_metrics_render(&page, false), 0);
    pd_buf_put_u8(&page, 0);
    assert_false(page.failed);
    (void)snprintf(name, sizeof(name), "packd_connections_refused_total{reason=\"%s\"} ", reason);
    const char *at = strstr((const char *)page.data, name);
    unsigned long count = at ? strtoul(at + strlen(name), NULL, 10) : 0;
    pd_buf_fini(&page);
    return count;
}

/* More than one call refuses: who is still in the queue is refused later, for the same reason. */
static void a_crowd_is_refused_for_its_reason(void **state)
{
    struct sockaddr_in address;
    int accepted;
    (void)state;
    start(1, 1);
    int listener = listen_on("127.0.0.1", &address);
    assert_int_equal(listen(listener, CROWD), 0);
    learn(PD_DOOR_MAIN);
    int first = connect_from("127.0.0.1", &address);
    assert_taken(listener, &accepted);
    unsigned long before[2] = {refused_for("limit"), refused_for("descriptors")};
    for (int i = 0; i < CROWD; i++)
        (void)close(connect_from("127.0.0.1", &address));
    assert_int_equal(accept_one(listener), -1);
    assert_int_equal(errno, EAGAIN);
    wait_readable(listener);
    pd_accept_unstick();
    assert_int_equal(refused_for("limit"), before[0] + CROWD);
    assert_int_equal(refused_for("descriptors"), before[1]);
    end(accepted);
    (void)close(first);
    (void)close(listener);
}

static void unix_sockets_are_one_host(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int accepted, clients[2];
    (void)state;
    start(8, 1);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* An abstract name of the kernel's choice. */
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(sa_family_t)), 0);
    assert_int_equal(listen(listener, 8), 0);
    socklen_t size = sizeof(address);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    learn(PD_DOOR_MAIN);
    for (int i = 0; i < 2; i++) {
        clients[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(clients[i], (struct sockaddr *)&address, size), 0);
        if (i == 0)
            assert_taken(listener, &accepted);
    }
    assert_refused(listener, clients[1]);
    end(accepted);
    (void)close(clients[0]);
    (void)close(clients[1]);
    (void)close(listener);
}

static void more_than_descriptors_carry_is_an_error(void **state)
{
    struct pd_error error;
    struct rlimit before, few;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){.rlim_cur = 1024, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    config.connections_max = 417;
    assert_int_equal(pd_connections_new(&config, &connections, &error), PD_EINVAL);
    assert_string_equal(error.reason, "DESCRIPTORS");
    assert_non_null(strstr(error.text, "room for 416"));
    config.connections_max = 0;
    assert_int_equal(pd_connections_new(&config, &connections, &error), 0);
    assert_int_equal(pd_connections_max(connections, PD_DOOR_MAIN), 416);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void names(void **state)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(7)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(8)};
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    char text[80];
    (void)state;
    assert_int_equal(inet_pton(AF_INET6, "2001:db8::1", &v6.sin6_addr), 1);
    assert_string_equal(pd_connections_name((void *)&v6, text, sizeof text), "[2001:db8::1]:7");
    assert_int_equal(inet_pton(AF_INET6, "::ffff:10.0.0.1", &v6.sin6_addr), 1);
    assert_string_equal(pd_connections_name((void *)&v6, text, sizeof text), "10.0.0.1:7");
    assert_int_equal(inet_pton(AF_INET, "10.0.0.2", &v4.sin_addr), 1);
    assert_string_equal(pd_connections_name((void *)&v4, text, sizeof text), "10.0.0.2:8");
    assert_string_equal(pd_connections_name((void *)&local, text, sizeof text), "unix");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_full_door_refuses_and_places_come_back, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_host_has_its_share, set_up, tear_down),
        cmocka_unit_test_setup_teardown(doors_have_places_of_their_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(want_of_descriptors_is_no_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_descriptor_beyond_the_bound_is_refused, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_crowd_is_refused_for_its_reason, set_up, tear_down),
        cmocka_unit_test_setup_teardown(unix_sockets_are_one_host, set_up, tear_down),
        cmocka_unit_test_setup_teardown(more_than_descriptors_carry_is_an_error, set_up, tear_down),
        cmocka_unit_test(names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
