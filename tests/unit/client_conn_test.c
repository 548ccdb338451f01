/* Small rules of the client: codes, texts, pauses, which failures pass, messages as JSON. */
#include "client/lib_conn.h"
#include "client/lib_error.h"
#include "client/lib_json.h"
#include "client/lib_tls.h"

#include "base/check.h"
#include "base/clock.h"
#include "proto/packd.pb-c.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_errors(void **state)
{
    (void)state;
    struct packd_error error = {0};
    assert_int_equal(pd_client_error(&error, PACKD_EINVAL, "WHY", "value %d", 7), PACKD_EINVAL);
    pd_client_error_prefix(&error, "stream %s", "s");
    assert_string_equal(error.text, "stream s: value 7");
    assert_string_equal(error.reason, "WHY");
    char longer[2000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    pd_client_error(&error, PACKD_EIO, longer, "%s", longer);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    pd_client_error_prefix(&error, "%s", longer);
    assert_true(strlen(error.text) == sizeof error.text - 1 && strstr(error.text, ": x"));
    assert_int_equal(pd_client_error(NULL, PACKD_EIO, "WHY", "nobody looks"), PACKD_EIO);
    pd_client_error_prefix(NULL, "nobody looks");
    assert_string_equal(packd_error_name(PACKD_ETIMEDOUT), "PACKD_ETIMEDOUT");
    assert_string_equal(packd_error_name(-999), "PACKD_E?");
    assert_int_equal(pd_client_code_of_grpc(10), PACKD_EFENCED);
    assert_int_equal(pd_client_code_of_grpc(14), PACKD_EUNAVAIL);
    assert_int_equal(pd_client_code_of_grpc(99), PACKD_EINTERNAL);
    assert_string_equal(pd_rpc_status_name(5), "NOT_FOUND");
    assert_string_equal(pd_rpc_status_name(-1), "UNKNOWN");
}

static bool passes(int code, const char *reason, bool transport, uint64_t retry_after_ms)
{
    struct packd_error error = {.code = code};
    struct pd_rpc_failure failure = {transport, retry_after_ms};
    strcpy(error.reason, reason);
    return pd_conn_retryable(&error, &failure);
}

static void test_what_passes(void **state)
{
    (void)state;
    assert_true(passes(PACKD_EUNAVAIL, "DRAINING", false, 0));
    assert_true(passes(PACKD_EINTERNAL, "TRANSPORT", true, 0));
    assert_true(passes(PACKD_ELIMIT, "STALL", false, 0));
    assert_true(passes(PACKD_EUNAVAIL, "LOG_FULL", false, 1000));
    assert_true(passes(PACKD_EMISMATCH, "HALTED", false, 500));
    assert_false(passes(PACKD_ELIMIT, "CREDIT", false, 0));
    assert_false(passes(PACKD_EFENCED, "FENCED", false, 0));
    assert_false(passes(PACKD_EINVAL, "SEQ_GAP", false, 0));
    assert_false(passes(PACKD_EUNAUTH, "CREDENTIALS", false, 0));
    assert_false(passes(PACKD_EUNSUPPORTED, "TRANSPORT", true, 0));
}

static int opens_with(const char *server, const char *token, struct packd_error *error)
{
    return pd_connection_check(server, token, &(struct packd_tls){0}, error);
}

static void test_addresses(void **state)
{
    (void)state;
    static const char *const good[] = {"[::1]:1", "localhost:65535", "unix:/s", "dns:///a:1"};
    static const char *const bad[] = {"",      "localhost", "h:0",    "h:65536", "h:99999",
                                      "h:7x",  "h:000001",  ":70",    "::1:7",   "[]:70",
                                      "a b:1", "unix:",     "unix:x", "http://h"};
    struct packd_error error = {0};
    for (size_t i = 0; i < PD_COUNT_OF(good); i++)
        assert_int_equal(opens_with(good[i], NULL, &error), 0);
    for (size_t i = 0; i < PD_COUNT_OF(bad); i++) {
        assert_int_equal(opens_with(bad[i], NULL, &error), PACKD_EINVAL);
        assert_string_equal(error.reason, "SERVER");
        assert_non_null(strstr(error.text, "expected host:port"));
    }
    char path[5 + 108 + 1] = "unix:/";
    memset(path + 6, 'x', 107);
    assert_int_equal(opens_with(path, NULL, &error), PACKD_EINVAL);
    path[5 + 107] = 0;
    assert_int_equal(opens_with(path, NULL, &error), 0);
}

static void test_tokens(void **state)
{
    (void)state;
    struct packd_error error = {0};
    char token[514] = "";
    for (size_t bytes = 0; bytes < sizeof token; bytes++) {
        assert_int_equal(opens_with("h:1", token, &error),
                         bytes >= 16 && bytes <= 512 ? 0 : PACKD_EINVAL);
        token[bytes] = "~ "[bytes & 1];
        token[bytes + (bytes < 513)] = 0;
    }
    for (int byte = 1; byte < 256; byte++) {
        char one[] = "a long secret token?";
        one[19] = (char)byte;
        int rc = opens_with("h:1", one, &error);
        assert_int_equal(rc, byte >= 0x20 && byte <= 0x7e ? 0 : PACKD_EINVAL);
        if (rc != 0) {
            assert_string_equal(error.reason, "TOKEN");
            assert_non_null(strstr(error.text, "byte 19 of the token is 0x"));
            assert_null(strstr(error.text, "secret"));
        }
    }
}

static void test_pauses(void **state)
{
    (void)state;
    struct pd_backoff backoff = {0};
    uint64_t low = 37, last = 0;
    for (int i = 0; i < 20; i++) {
        last = pd_backoff_next_ns(&backoff, 0) / 1000000;
        assert_true(last >= low && last <= 2000);
        low = low < 1000 ? low * 2 : 1500;
        if (low > 1500)
            low = 1500;
    }
    assert_int_equal(pd_backoff_next_ns(&backoff, 9000), UINT64_C(9000000000));
    backoff.attempts = 0;
    assert_true(pd_backoff_next_ns(&backoff, 0) <= 50000000);
    uint64_t now = pd_clock_mono_ns();
    assert_true(pd_conn_deadline_ns(0, 5000, 1000) < now + 1000000000);
    assert_true(pd_conn_deadline_ns(-1, 5000, 1000) >= now + UINT64_C(5000000000));
    assert_true(pd_conn_deadline_ns(-1, 0, 1000) >= now + UINT64_C(1000000000));
    assert_true(pd_conn_deadline_ns(INT64_MAX, 0, 0) > now);
}

static char *json_of(const ProtobufCMessage *message)
{
    struct pd_buf out = {0};
    pd_json_message(message, &out);
    pd_buf_put_u8(&out, 0);
    assert_false(out.failed);
    return (char *)out.data;
}

static void test_json(void **state)
{
    (void)state;
    Packd__V1__SampleTable table = PACKD__V1__SAMPLE_TABLE__INIT;
    char *streams[] = {(char *)(uintptr_t) "a\"b\\\n\x01", (char *)(uintptr_t) "\xc3\xa4\xff"};
    uint64_t seq[] = {0, UINT64_MAX}, digest[] = {1, UINT64_MAX};
    float weights[] = {0.1f, INFINITY};
    ProtobufCBinaryData keys[] = {{2, (uint8_t *)(uintptr_t) "ok"},
                                  {3, (uint8_t *)(uintptr_t) "\xff\x00z"}};
    table.n_streams = table.n_seq = table.n_digest = table.n_loss_weights = table.n_key = 2;
    table.streams = streams;
    table.seq = seq;
    table.digest = digest;
    table.loss_weights = weights;
    table.key = keys;
    char *json = json_of(&table.base);
    assert_non_null(
        strstr(json, "\"streams\": [\"a\\\"b\\\\\\n\\u0001\", \"\xc3\xa4\xef\xbf\xbd\"]"));
    assert_non_null(strstr(json, "\"seq\": [0, 18446744073709551615]"));
    assert_non_null(strstr(json, "\"digest\": [\"0000000000000001\", \"ffffffffffffffff\"]"));
    assert_non_null(strstr(json, "\"key\": [\"ok\", {\"hex\": \"ff007a\"}]"));
    assert_non_null(strstr(json, "\"loss_weights\": [0.100000001, null]"));
    assert_non_null(strstr(json, "\"flags\": []"));
    free(json);

    Packd__V1__RankStatus rank = PACKD__V1__RANK_STATUS__INIT;
    rank.delivered_step = -1;
    json = json_of(&rank.base);
    assert_non_null(strstr(json, "\"delivered_step\": -1"));
    assert_non_null(strstr(json, "\"waiting\": null"));
    free(json);

    Packd__V1__Waiting waiting = PACKD__V1__WAITING__INIT;
    waiting.reason = PACKD__V1__WAIT_REASON__WAIT_COMMIT;
    json = json_of(&waiting.base);
    assert_non_null(strstr(json, "\"reason\": \"WAIT_COMMIT\""));
    free(json);
    waiting.reason = (Packd__V1__WaitReason)77;
    json = json_of(&waiting.base);
    assert_non_null(strstr(json, "\"reason\": 77"));
    free(json);

    Packd__V1__FlushRequest flush = PACKD__V1__FLUSH_REQUEST__INIT;
    json = json_of(&flush.base);
    assert_string_equal(json, "{\"feed\": \"\"}");
    free(json);
    flush.what_case = PACKD__V1__FLUSH_REQUEST__WHAT_ALL;
    flush.all = true;
    json = json_of(&flush.base);
    assert_string_equal(json, "{\"feed\": \"\", \"all\": true}");
    free(json);
}

static void test_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
    } cases[] = {{"a", 1},
                 {"\xc3\xa4", 2},
                 {"\xe2\x82\xac", 3},
                 {"\xf0\x9f\x98\x80", 4},
                 {"\xc3", 0},
                 {"\xc0\x80", 0},
                 {"\xe0\x80\x80", 0},
                 {"\xed\xa0\x80", 0},
                 {"\xf4\x90\x80\x80", 0},
                 {"\x80", 0},
                 {"\xff", 0},
                 {"\xf8\x88\x80\x80\x80", 0}};
    for (size_t i = 0; i < PD_COUNT_OF(cases); i++)
        assert_int_equal(pd_utf8_length((const uint8_t *)cases[i].bytes, strlen(cases[i].bytes)),
                         cases[i].length);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),    cmocka_unit_test(test_what_passes),
        cmocka_unit_test(test_addresses), cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_pauses),    cmocka_unit_test(test_json),
        cmocka_unit_test(test_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
