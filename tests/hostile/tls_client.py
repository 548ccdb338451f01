"""The client's side of TLS, for those who trust whomever they meet and want to misbehave.

`wrap` makes a socket of Python's; `Session` drives libssl itself, for what Python has no words for: key updates and renegotiations.
"""

import ctypes
import socket
import ssl
import struct

TLS1_2, TLS1_3 = 0x0303, 0x0304
WAIT_S = 5
SET_MIN_VERSION, SET_MAX_VERSION = 123, 124
LIBRARY = ctypes.CDLL("libssl.so.3")
for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
    getattr(LIBRARY, name).restype = ctypes.c_void_p


class Socket(ssl.SSLSocket):
    """One that says as other sockets do when it has to wait."""

    def send(self, data, flags=0):
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def recv(self, buflen=1024, flags=0):
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error


def make_context():
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode, made.sslsocket_class = False, ssl.CERT_NONE, Socket
    made.set_alpn_protocols(["h2"])
    return made


CONTEXT = make_context()


def wrap(plain):
    """Takes a connected socket; the handshake is over, and the socket does not block."""
    made = CONTEXT.wrap_socket(plain, do_handshake_on_connect=False)
    made.settimeout(WAIT_S)
    made.do_handshake()
    made.setblocking(False)
    return made


class Session:
    """One of a given version on a connected socket, which it takes. OSError: it came to nothing, or has ended."""

    def __init__(self, plain, version=TLS1_3):
        self.socket = plain
        plain.setblocking(True)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            plain.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", WAIT_S, 0))
        self.context = ctypes.c_void_p(LIBRARY.SSL_CTX_new(ctypes.c_void_p(LIBRARY.TLS_client_method())))
        for what in (SET_MIN_VERSION, SET_MAX_VERSION):
            LIBRARY.SSL_CTX_ctrl(self.context, what, ctypes.c_long(version), None)
        LIBRARY.SSL_CTX_set_alpn_protos(self.context, b"\x02h2", 3)
        self.ssl = ctypes.c_void_p(LIBRARY.SSL_new(self.context))
        LIBRARY.SSL_set_fd(self.ssl, plain.fileno())
        if LIBRARY.SSL_connect(self.ssl) != 1:
            self.close()
            raise ConnectionError("no handshake")
        plain.setblocking(False)

    def update_keys(self, most):
        """Asks for new keys on both sides, up to `most` times; how often the socket took it."""
        for done in range(most):
            LIBRARY.SSL_key_update(self.ssl, 1)
            if LIBRARY.SSL_do_handshake(self.ssl) != 1:
                return self.waits(done)
        return most

    def renegotiate(self):
        LIBRARY.SSL_renegotiate(self.ssl)
        if LIBRARY.SSL_do_handshake(self.ssl) != 1:
            self.waits(0)

    def waits(self, value):
        """The value where the last function only has to wait."""
        if LIBRARY.SSL_get_error(self.ssl, -1) not in (ssl.SSL_ERROR_WANT_READ, ssl.SSL_ERROR_WANT_WRITE):
            raise ConnectionError("the session has ended")
        return value

    def close(self):
        LIBRARY.SSL_free(self.ssl)
        LIBRARY.SSL_CTX_free(self.context)
        self.socket.close()
