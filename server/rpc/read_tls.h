/* packd's own SSL_read: the frames of connections with TLS are looked at on their way to gRPC.
 *
 * libgrpc gets what a connection brought decrypted with SSL_read by its public name, and with that
 * alone once the handshake is over; so packd defines SSL_read, for all in its process, as it does
 * recvmsg (read_plain.h). libgrpc hands OpenSSL the ciphertext through memory, so there is no
 * descriptor to tell a connection by: what was seen of one hangs on its SSL object and goes with
 * it. Objects that are not a server's get OpenSSL's answer as it is: they are a client library's
 * that shares the process. */
#ifndef PD_SERVER_RPC_READ_TLS_H
#define PD_SERVER_RPC_READ_TLS_H

#include <openssl/types.h>

/* SSL_read(3), for libraries that call it; 0 where OpenSSL's own says -1: what there is to know of
 * either, SSL_get_error tells. A connection that ends for its frames, or that there is no memory to
 * watch: -1 and SSL_ERROR_SSL, from then on, and gRPC closes it. */
int pd_ssl_read(SSL *ssl, void *bytes, int size) __asm__("SSL_read");

#endif
