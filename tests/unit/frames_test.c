/* HTTP/2 frames as gRPC's connections bring them: however they are cut, a header block without an
 * end and a flood of resets are found, and all else passes. The same through recvmsg, on sockets. */
#include "server/rpc/frames.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
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
static const char *fed(size_t most, uint64_t now_ns)
{
    struct pd_frames frames = {0};
    const char *wrong = NULL;
    for (size_t at = 0; at < size && !wrong; at += most)
        wrong = pd_frames_take(&frames, bytes + at, size - at < most ? size - at : most, now_ns);
    return wrong;
}

static void expect(const char *wrong)
{
    const size_t pieces[] = {1, 2, 8, 9, 10, 4096, sizeof bytes};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const char *found = fed(pieces[i], SECOND_NS);
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

static void test_resets(void **state)
{
    struct pd_frames frames = {0};
    (void)state;
    begin();
    for (uint32_t i = 0; i < PD_FRAMES_RESETS_MAX; i++)
        put(RST_STREAM, 0, 4);
    expect(NULL);
    put(RST_STREAM, 0, 4);
    expect("resets");
    begin();
    put(RST_STREAM, 0, 4);
    for (uint64_t i = 0; i < 3000; i++) { /* 500 a second */
        size_t at = i == 0 ? 0 : sizeof preface - 1;
        assert_null(pd_frames_take(&frames, bytes + at, size - at, i * SECOND_NS / 500));
    }
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
    assert_int_equal(pd_frames_open(256, &error), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    begin();
    put(HEADERS, 4, 100);
    pd_frames_begin(pair[0]);
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
    pd_frames_begin(other[0]);
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
    pd_frames_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes),  cmocka_unit_test(test_header_block),
        cmocka_unit_test(test_resets),  cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_sockets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
