/* HTTP/2 frames as gRPC's connections bring them: however they are cut, a header block without an
 * end, a flood of resets and too many streams in a crowd are found, and all else passes. The same
 * through recvmsg, on sockets, and through SSL_read, on sessions that lie in memory as libgrpc's
 * do; and that libgrpc calls these. */
#include "base/clock.h"
#include "server/rpc/frames.h"
#include "server/rpc/interposed.h"
#include "server/rpc/read_plain.h"
#include "server/rpc/read_tls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND_NS 1000000000u
enum { DATA, HEADERS, RST_STREAM = 3, PING = 6, CONTINUATION = 9 };

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/* A connection's bytes; it only grows. */
static uint8_t bytes[4 << 20];
static size_t size;

static void begin(void)
{
    size = sizeof preface - 1;
    memcpy(bytes, preface, size);
}

static void put(int kind, int flags, uint32_t payload)
{
    const uint8_t header[9] = {(uint8_t)(payload >> 16),
                               (uint8_t)(payload >> 8),
                               (uint8_t)payload,
                               (uint8_t)kind,
                               (uint8_t)flags,
                               0,
                               0,
                               0,
                               1};
    assert_true(size + sizeof header + payload <= sizeof bytes);
    memcpy(bytes + size, header, sizeof header);
    memset(bytes + size + sizeof header, 0x55, payload);
    size += sizeof header + payload;
}

/* Fed in pieces of at most `most` bytes, all at one time. */
static const char *fed(size_t most, int door, uint64_t now_ns)
{
    struct pd_frames frames = {.door = door};
    const char *wrong = NULL;
    for (size_t at = 0; at < size && !wrong; at += most)
        wrong = pd_frames_take(&frames, bytes + at, size - at < most ? size - at : most, now_ns);
    return wrong;
}

static void expect(const char *wrong)
{
    const size_t pieces[] = {1, 2, 8, 9, 10, 4096, sizeof bytes};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const char *found = fed(pieces[i], PD_DOOR_MAIN, SECOND_NS);
        if (wrong)
            assert_string_equal(found, wrong);
        else
            assert_null(found);
    }
}

static void test_passes(void **state)
{
    (void)state;
    begin();
    for (int i = 0; i < 100; i++) {
        put(HEADERS, 4, 300);
        put(DATA, 0, 16384);
        put(HEADERS, 0, 8000);
        put(CONTINUATION, 4, 8000);
        put(RST_STREAM, 0, 4);
        put(PING, 0, 8);
        put(DATA, 1, 0);
    }
    expect(NULL);
    begin();
    put(DATA, 0, 1 << 20);
    expect(NULL);
    begin();
    put(HEADERS, 4, PD_FRAMES_BLOCK_BYTES_MAX);
    expect(NULL);
}

static void test_header_block(void **state)
{
    (void)state;
    begin();
    put(HEADERS, 0, 100);
    for (int i = 0; i < 5; i++)
        put(CONTINUATION, 0, 16384);
    expect("header_block");
    begin();
    put(HEADERS, 4, PD_FRAMES_BLOCK_BYTES_MAX + 1);
    expect("header_block");
}

/* So many of a frame pass in a second, and no more. */
static void check_rate(int kind, uint32_t payload, uint32_t max, const char *wrong)
{
    begin();
    for (uint32_t i = 0; i < max; i++)
        put(kind, 0, payload);
    expect(NULL);
    put(kind, 0, payload);
    expect(wrong);
}

static void test_pings(void **state)
{
    (void)state;
    check_rate(PING, 8, PD_FRAMES_PINGS_MAX, "pings");
}

static void test_resets(void **state)
{
    struct pd_frames frames = {0};
    (void)state;
    check_rate(RST_STREAM, 4, PD_FRAMES_RESETS_MAX, "resets");
    begin();
    put(RST_STREAM, 0, 4);
    for (uint64_t i = 0; i < 3000; i++) { /* 500 a second */
        size_t at = i == 0 ? 0 : sizeof preface - 1;
        assert_null(pd_frames_take(&frames, bytes + at, size - at, i * SECOND_NS / 500));
    }
}

/* How many streams a connection may open in a second once calls are refused for their number. */
static void test_crowded(void **state)
{
    (void)state;
    begin();
    for (uint32_t i = 0; i < PD_FRAMES_CROWDED_MAX; i++)
        put(HEADERS, i % 2 == 0 ? 4 : 0, 10);
    pd_frames_crowd(PD_DOOR_MAIN, SECOND_NS);
    expect(NULL);
    put(CONTINUATION, 4, 10); /* opens none */
    expect(NULL);
    put(HEADERS, 4, 10);
    expect("streams");
    assert_null(fed(100, PD_DOOR_MAIN, 2 * SECOND_NS)); /* the crowd has gone */
    assert_null(fed(100, PD_DOOR_HEALTH, SECOND_NS));   /* or is at another door */
    assert_string_equal(fed(100, PD_DOORS, SECOND_NS), "streams");
    pd_frames_crowd(PD_DOOR_MAIN, 0);
    expect(NULL);
}

static void test_foreign(void **state)
{
    (void)state;
    begin();
    put(HEADERS, 0, 1 << 20);
    bytes[0] = 0x16; /* TLS */
    expect(NULL);
}

static ssize_t receive(int fd)
{
    static uint8_t buffer[1 << 16];
    struct iovec parts[] = {{buffer, 100}, {buffer + 100, sizeof buffer - 100}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return recvmsg(fd, &message, 0);
}

static void test_sockets(void **state)
{
    struct pd_error error = {0};
    int pair[2];
    (void)state;
    assert_int_equal(pd_read_plain_open(256, &error), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    begin();
    put(HEADERS, 4, 100);
    pd_read_plain_begin(pair[0], PD_DOOR_MAIN);
    assert_int_equal(write(pair[1], bytes, size), (ssize_t)size);
    assert_int_equal(receive(pair[0]), (ssize_t)size);
    size = 0;
    put(HEADERS, 0, 60000);
    assert_int_equal(write(pair[1], bytes, size), (ssize_t)size);
    assert_int_equal(receive(pair[0]), (ssize_t)size);
    size = 0;
    put(CONTINUATION, 0, 10000);
    assert_int_equal(write(pair[1], bytes, size), (ssize_t)size);
    assert_int_equal(receive(pair[0]), -1);
    assert_int_equal(errno, ECONNRESET);
    assert_int_equal(read(pair[1], bytes, 1), 0); /* shut down */
    close(pair[0]);
    close(pair[1]);

    /* The same number, somebody else's socket: what it carries is its own affair. */
    int other[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, other), 0);
    pd_read_plain_begin(other[0], PD_DOOR_MAIN);
    close(other[1]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_true(dup2(pair[0], other[0]) == other[0]);
    begin();
    put(HEADERS, 4, PD_FRAMES_BLOCK_BYTES_MAX + 1);
    assert_int_equal(write(pair[1], bytes, 100), 100);
    assert_int_equal(receive(other[0]), 100);
    assert_int_equal(write(pair[1], bytes, 100), 100);
    assert_int_equal(receive(other[0]), 100);
    close(pair[0]);
    close(pair[1]);
    close(other[0]);
    pd_read_plain_close();
}

/* What a connection may do goes by the door that it came through. */
static void test_sockets_of_doors(void **state)
{
    struct pd_error error = {0};
    (void)state;
    assert_int_equal(pd_read_plain_open(256, &error), 0);
    begin();
    for (uint32_t i = 0; i <= PD_FRAMES_CROWDED_MAX; i++)
        put(HEADERS, 4, 10);
    for (int crowded = 0; crowded < PD_DOORS; crowded++)
        for (int door = 0; door < PD_DOORS; door++) {
            int pair[2];
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
            pd_read_plain_begin(pair[0], (enum pd_door)door);
            pd_frames_crowd((enum pd_door)crowded, pd_clock_mono_ns());
            assert_int_equal(write(pair[1], bytes, size), (ssize_t)size);
            assert_int_equal(receive(pair[0]), door == crowded ? -1 : (ssize_t)size);
            pd_frames_crowd((enum pd_door)crowded, 0);
            close(pair[0]);
            close(pair[1]);
        }
    pd_read_plain_close();
}

/* ---- TLS ---- */

#define NETWORK_BYTES 17000 /* what may be under way, as libgrpc has it */

/* Both ends of a connection, joined in memory. */
struct session {
    SSL_CTX *context;
    SSL *client, *server;
};

static SSL *join(struct session *t, BIO *end, void (*set_role)(SSL *))
{
    SSL *made = SSL_new(t->context);
    assert_non_null(made);
    SSL_set_bio(made, end, end);
    set_role(made);
    return made;
}

/* Without certificates: keys alone. */
static struct session open_session(void)
{
    struct session t = {.context = SSL_CTX_new(TLS_method())};
    BIO *ends[2];
    assert_int_equal(SSL_CTX_set_max_proto_version(t.context, TLS1_2_VERSION), 1);
    assert_int_equal(SSL_CTX_set_cipher_list(t.context, "AECDH-AES128-SHA:@SECLEVEL=0"), 1);
    assert_int_equal(BIO_new_bio_pair(&ends[0], NETWORK_BYTES, &ends[1], NETWORK_BYTES), 1);
    t.client = join(&t, ends[0], SSL_set_connect_state);
    t.server = join(&t, ends[1], SSL_set_accept_state);
    for (int i = 0; i < 10 && !(SSL_is_init_finished(t.client) && SSL_is_init_finished(t.server));
         i++) {
        (void)SSL_do_handshake(t.client);
        (void)SSL_do_handshake(t.server);
    }
    assert_true(SSL_is_init_finished(t.server));
    return t;
}

static void close_session(const struct session *t)
{
    SSL_free(t->client);
    SSL_free(t->server);
    SSL_CTX_free(t->context);
}

/* Writes `bytes` at one end and reads them at the other in pieces of at most `most` bytes, records
 * of up to `record`. What SSL_get_error says at the end: SSL_ERROR_NONE, all has come as it was. */
static int carried(SSL *from, SSL *to, size_t record, size_t most)
{
    static uint8_t piece[1 << 14];
    size_t sent = 0, come = 0;
    while (come < size) {
        if (sent < size && sent == come) {
            int some =
                SSL_write(from, bytes + sent, (int)(size - sent < record ? size - sent : record));
            assert_true(some > 0);
            sent += (size_t)some;
        }
        ERR_clear_error();
        int got = SSL_read(to, piece, (int)most);
        if (got <= 0)
            return SSL_get_error(to, got);
        assert_true((size_t)got <= sent - come);
        assert_memory_equal(piece, bytes + come, got);
        come += (size_t)got;
    }
    return SSL_ERROR_NONE;
}

static int carried_once(size_t record, size_t most)
{
    struct session t = open_session();
    int error = carried(t.client, t.server, record, most);
    close_session(&t);
    return error;
}

static void test_tls_cut_anyhow(void **state)
{
    const size_t records[] = {100, 8192, 16384}, mosts[] = {1, 9, 8192, 16384};
    (void)state;
    for (size_t r = 0; r < sizeof records / sizeof *records; r++)
        for (size_t m = 0; m < sizeof mosts / sizeof *mosts; m++) {
            begin();
            put(HEADERS, 0, 8000);
            put(CONTINUATION, 4, 8000);
            put(DATA, 1, 3000);
            assert_int_equal(carried_once(records[r], mosts[m]), SSL_ERROR_NONE);
            begin();
            put(HEADERS, 0, 100);
            for (int i = 0; i < 5; i++)
                put(CONTINUATION, 0, 16384);
            assert_int_equal(carried_once(records[r], mosts[m]), SSL_ERROR_SSL);
        }
}

static void test_tls_resets(void **state)
{
    (void)state;
    begin();
    for (uint32_t i = 0; i < PD_FRAMES_RESETS_MAX; i++)
        put(RST_STREAM, 0, 4);
    assert_int_equal(carried_once(8192, 8192), SSL_ERROR_NONE);
    for (uint32_t i = 0; i < 10 * PD_FRAMES_RESETS_MAX; i++)
        put(RST_STREAM, 0, 4);
    assert_int_equal(carried_once(8192, 8192), SSL_ERROR_SSL);
}

static void test_tls_ends(void **state)
{
    uint8_t piece[100];
    struct session t = open_session(), other = open_session();
    (void)state;
    begin();
    put(HEADERS, 4, PD_FRAMES_BLOCK_BYTES_MAX + 1);
    assert_int_equal(carried(t.client, t.server, 8192, 8192), SSL_ERROR_SSL);
    begin(); /* what comes after it is not given out, whatever it is */
    put(DATA, 1, 100);
    assert_int_equal(SSL_write(t.client, bytes, (int)size), (int)size);
    ERR_clear_error();
    assert_int_equal(SSL_read(t.server, piece, sizeof piece), -1);
    assert_int_equal(SSL_get_error(t.server, -1), SSL_ERROR_SSL);
    assert_int_equal(ERR_GET_LIB(ERR_peek_error()), ERR_LIB_SSL);
    /* Another connection of the same context feels nothing. */
    assert_int_equal(carried(other.client, other.server, 8192, 8192), SSL_ERROR_NONE);
    close_session(&t);
    close_session(&other);
}

/* What is OpenSSL's to say, it says: nothing there yet, the end, a client's end, bad arguments. */
static void test_tls_else_as_it_was(void **state)
{
    uint8_t piece[100];
    struct session t = open_session();
    (void)state;
    assert_true(SSL_read(t.server, piece, sizeof piece) <= 0);
    assert_int_equal(SSL_get_error(t.server, 0), SSL_ERROR_WANT_READ);
    begin();
    put(HEADERS, 4, PD_FRAMES_BLOCK_BYTES_MAX + 1);
    assert_int_equal(carried(t.server, t.client, 8192, 8192), SSL_ERROR_NONE);
    bytes[0] = 'G'; /* no HTTP/2 */
    assert_int_equal(carried(t.client, t.server, 8192, 8192), SSL_ERROR_NONE);
    ERR_clear_error();
    assert_int_equal(SSL_read(t.server, piece, -1), -1);
    assert_int_equal(SSL_get_error(t.server, -1), SSL_ERROR_SSL);
    ERR_clear_error();
    (void)SSL_shutdown(t.client);
    assert_true(SSL_read(t.server, piece, sizeof piece) <= 0);
    assert_int_equal(SSL_get_error(t.server, 0), SSL_ERROR_ZERO_RETURN);
    close_session(&t);
}

/* ---- whom gRPC calls ---- */

static void nobody_calls(void)
{
}

static void test_interposed(void **state)
{
    struct pd_error error = {0};
    (void)state;
    assert_int_equal(pd_interposed_check("recvmsg", (void (*)(void))pd_recvmsg, &error), 0);
    assert_int_equal(pd_interposed_check("SSL_read", (void (*)(void))pd_ssl_read, &error), 0);
    /* libgrpc has no use for the first, and gets the second from OpenSSL. */
    assert_int_equal(pd_interposed_check("SSL_read_ex", nobody_calls, &error), PD_EUNSUPPORTED);
    assert_non_null(strstr(error.text, "does not call"));
    assert_int_equal(pd_interposed_check("SSL_write", nobody_calls, &error), PD_EUNSUPPORTED);
    assert_non_null(strstr(error.text, "comes before"));
    assert_non_null(strstr(error.text, "libgrpc"));
    assert_string_equal(error.reason, "LIBGRPC");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes),         cmocka_unit_test(test_header_block),
        cmocka_unit_test(test_pings),          cmocka_unit_test(test_resets),
        cmocka_unit_test(test_crowded),        cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_sockets),        cmocka_unit_test(test_sockets_of_doors),
        cmocka_unit_test(test_tls_cut_anyhow), cmocka_unit_test(test_tls_resets),
        cmocka_unit_test(test_tls_ends),       cmocka_unit_test(test_tls_else_as_it_was),
        cmocka_unit_test(test_interposed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
