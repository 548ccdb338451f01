/* packd's own SSL_read.
 *
 * Place in the flow: gRPC's threads call it for each piece of up to 8 KiB that they want decrypted
 * of a connection, after the handshake. gRPC holds a connection's own lock meanwhile, as OpenSSL
 * wants it, so a connection's watch needs none; SSL_free ends the watch. Invariant: it gives what
 * OpenSSL gave, byte for byte, or an error that stays; gRPC takes that for damaged ciphertext and
 * closes the connection. It closes none itself, and sees nothing of handshakes.
 *
 * Should libgrpc get at its bytes another way (another function of OpenSSL, another TLS library, a
 * copy inside itself), nothing would be watched and nothing would fail: interposed.c looks for that
 * at start, and `tests/hostile/abuse_test.py` attacks the addresses with TLS too. */
#include "server/rpc/read_tls.h"

#include "base/check.h"
#include "base/clock.h"
#include "server/rpc/frames.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/sslerr.h>
#include <pthread.h>
#include <stdlib.h>

struct watch {
    struct pd_frames frames;
    const char *wrong; /* the connection has ended for it */
};

/* Of a watch among what hangs on an SSL object; for the life of the process, as OpenSSL has it. */
static int place;
static pthread_once_t place_once = PTHREAD_ONCE_INIT;

static void free_watch(void *ssl, void *watch, CRYPTO_EX_DATA *all, int at, long unused_number,
                       void *unused)
{
    (void)ssl, (void)all, (void)at, (void)unused_number, (void)unused;
    free(watch);
}

static void make_place(void)
{
    place = SSL_get_ex_new_index(0, NULL, NULL, NULL, free_watch);
    PD_CHECK(place >= 0);
}

/* NULL: no memory. */
static struct watch *watch_of(SSL *ssl)
{
    PD_CHECK(pthread_once(&place_once, make_place) == 0);
    struct watch *watch = SSL_get_ex_data(ssl, place);
    if (watch)
        return watch;
    watch = calloc(1, sizeof(*watch));
    if (watch)
        watch->frames.door = PD_DOORS; /* an SSL object does not say */
    if (watch && SSL_set_ex_data(ssl, place, watch) != 1) {
        free(watch);
        return NULL;
    }
    return watch;
}

static int refused(int reason)
{
    ERR_raise(ERR_LIB_SSL, reason);
    return -1;
}

int pd_ssl_read(SSL *ssl, void *bytes, int size)
{
    size_t got = 0;
    if (size < 0)
        return refused(SSL_R_BAD_LENGTH);
    if (!SSL_is_server(ssl))
        return SSL_read_ex(ssl, bytes, (size_t)size, &got) == 1 ? (int)got : 0;
    struct watch *watch = watch_of(ssl);
    if (!watch)
        return refused(ERR_R_MALLOC_FAILURE);
    if (watch->wrong)
        return refused(SSL_R_UNEXPECTED_MESSAGE);
    if (SSL_read_ex(ssl, bytes, (size_t)size, &got) != 1)
        return 0;
    watch->wrong = pd_frames_take(&watch->frames, bytes, got, pd_clock_mono_ns());
    if (!watch->wrong)
        return (int)got;
    pd_frames_tell(watch->wrong, "tls");
    return refused(SSL_R_UNEXPECTED_MESSAGE);
}
