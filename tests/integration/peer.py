"""A client nobody at packd wrote: the stock gRPC package and the .proto files, nothing else.

Its decoding of batches follows the comments of packd.proto and shares no code with packd.
"""

import os
import queue
import subprocess
import sys
import tempfile

import grpc
import numpy as np

import certificates


def compile_protos():
    out = tempfile.mkdtemp()
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-Iproto", f"--python_out={out}", f"--grpc_python_out={out}",
                    *(os.path.join("proto", name) for name in sorted(os.listdir("proto")) if name.endswith(".proto"))],
                   check=True)
    sys.path.insert(0, out)


compile_protos()
import health_pb2  # noqa: E402
import health_pb2_grpc  # noqa: E402
import packd_pb2 as pb  # noqa: E402
import packd_pb2_grpc as rpc  # noqa: E402

DTYPES = {pb.DTYPE_INT32: np.int32, pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64, pb.DTYPE_UINT8: np.uint8,
          pb.DTYPE_BOOL: np.bool_}
CALL_S = 60


class Secure(str):
    """An address that speaks TLS; `ca` is the file of whom to trust, `cert` and `key` are the client's own where it has some."""

    def __new__(cls, address, ca, cert=None, key=None):
        made = super().__new__(cls, address)
        made.credentials = grpc.ssl_channel_credentials(*(certificates.read(path) if path else None for path in (ca, key, cert)))
        return made


def channel(address, options=()):
    options = [("grpc.use_local_subchannel_pool", 1), *options]
    if isinstance(address, Secure):
        return grpc.secure_channel(address, address.credentials, [("grpc.ssl_target_name_override", certificates.SERVER_NAME), *options])
    return grpc.insecure_channel(address, options)


def error_detail(error):
    """The ErrorDetail of a failed call."""
    for key, value in error.trailing_metadata() or ():
        if key == "packd-error-bin":
            detail = pb.ErrorDetail()
            detail.ParseFromString(value)
            return detail
    return None


class Push:
    """One Push call: send messages, read responses."""

    def __init__(self, address, feed="default", stream="s", timeout=CALL_S, **hello):
        self.channel = channel(address)
        self.outgoing = queue.Queue()
        self.call = rpc.IngestStub(self.channel).Push(iter(self.outgoing.get, None), timeout=timeout)
        self.sent_bytes, self.max_piece_bytes = 0, 1 << 20
        self.rejects = []
        self.durable_seq = 0
        self.send(pb.PushRequest(hello=pb.Hello(feed=feed, stream=stream, **hello)))

    def send(self, message):
        self.outgoing.put(message)

    def welcome(self):
        response = next(self.call)
        assert response.WhichOneof("what") == "welcome", response
        self.next_seq = response.welcome.next_seq
        self.max_piece_bytes = response.welcome.max_piece_bytes
        self.credit_bytes = response.welcome.credit_bytes
        return response.welcome

    def read(self):
        """The next response, with acks and rejects also noted."""
        response = next(self.call)
        if response.HasField("ack"):
            self.durable_seq = response.ack.durable_seq
            self.credit_bytes = response.ack.credit_bytes
        elif response.HasField("reject"):
            self.rejects.append(response.reject)
        return response

    def block(self, samples, first_seq=None, pieces=1, **head):
        """Sends samples (lists of token ids) as one block, its body in `pieces` pieces or more, waiting for credit as the contract says."""
        if first_seq is None:
            first_seq = self.next_seq
        body = np.concatenate([np.asarray(s, dtype="<i4") for s in samples]).tobytes() if samples else b""
        body += head.pop("labels_bytes", b"")
        head = pb.BlockHead(first_seq=first_seq, lengths=[len(s) for s in samples], body_bytes=len(body), **head)
        pieces = max(pieces, -(-len(body) // self.max_piece_bytes))
        cuts = [len(body) * i // pieces for i in range(pieces + 1)]
        parts = [body[a:b] for a, b in zip(cuts, cuts[1:])]
        for i, part in enumerate(parts):
            cost = len(part) + (head.ByteSize() if i == 0 else 0)
            while self.sent_bytes + cost > self.credit_bytes:
                self.read()
            self.sent_bytes += cost
            if i == 0:
                self.send(pb.PushRequest(block=pb.SampleBlock(head=head, body=part)))
            else:
                self.send(pb.PushRequest(chunk=pb.BlockChunk(body=part)))
        self.next_seq = max(self.next_seq, first_seq + len(samples))

    def wait_durable(self, seq):
        while self.durable_seq < seq:
            self.read()

    def end_stream(self):
        self.send(pb.PushRequest(end=pb.EndOfStream(next_seq=self.next_seq)))
        while True:
            if self.read().HasField("ended"):
                return

    def close(self):
        """Half-closes, reads to the end, returns the status code."""
        self.outgoing.put(None)
        try:
            while True:
                self.read()
        except StopIteration:
            pass
        self.channel.close()

    def fails(self):
        """Reads until the call fails; the grpc.RpcError."""
        try:
            while True:
                self.read()
        except grpc.RpcError as error:
            self.outgoing.put(None)
            self.channel.close()
            return error
        except StopIteration:
            raise AssertionError("the call ended with OK")


class Batch:
    """A fetched batch: header, delivery, and NumPy arrays cut out of the payload by the header's table."""

    def __init__(self, begin, header_bytes, payload):
        self.header_bytes = header_bytes
        self.header = pb.BatchHeader()
        self.header.ParseFromString(header_bytes)
        self.delivery = begin.delivery
        self.payload = payload
        self.arrays = {}
        for info in self.header.arrays:
            raw = payload[info.offset:info.offset + info.bytes]
            if len(raw) == info.bytes:
                self.arrays[info.name] = np.frombuffer(raw, dtype=DTYPES[info.dtype]).reshape(tuple(info.shape))

    def __getitem__(self, name):
        return self.arrays[name]

    def samples(self):
        """[((stream, seq, part), tokens)] of the real segments, cut out by cu_seqlens and seq_lens."""
        table = self.header.samples
        flat = self["tokens"].reshape(-1)
        out = []
        for s, row in enumerate(self["sample_index"]):
            if row < 0:
                continue
            start = self["cu_seqlens"][s]
            part = table.part[row] if len(table.part) else 0
            key = (table.streams[table.stream[row]] if len(table.stream) else table.streams[0],
                   table.seq[row] if len(table.seq) else 0, part)
            out.append((key, flat[start:start + self["seq_lens"][s]].tolist()))
        return out


def open_job(address, job="train", feed="default", dp_size=1, rows=1, accum=1, timeout=CALL_S, **more):
    with channel(address) as ch:
        return rpc.FeedStub(ch).OpenJob(pb.OpenJobRequest(feed=feed, job=job, dp_size=dp_size, rows=rows, accum=accum, **more),
                                        timeout=timeout)


class Fetch:
    """One Fetch call, batches one by one; a credit is given back for each batch taken."""

    def __init__(self, address, opened, job="train", feed="default", dp_rank=0, first_step=None, credit=2, timeout=CALL_S, **more):
        self.channel = channel(address)
        self.outgoing = queue.Queue()
        self.call = rpc.FeedStub(self.channel).Fetch(iter(self.outgoing.get, None), timeout=timeout)
        self.waits = []
        self.end = None
        self.outgoing.put(pb.FetchRequest(open=pb.FetchOpen(
            feed=feed, job=job, log_id=opened.log_id, generation=opened.generation, dp_rank=dp_rank,
            first_step=opened.first_step if first_step is None else first_step, credit_batches=credit, **more)))

    def next_message(self):
        return next(self.call)

    def next(self):
        """The next batch, or None at the end of the feed."""
        while True:
            try:
                message = self.next_message()
            except StopIteration:
                return None
            what = message.WhichOneof("what")
            if what == "waiting":
                self.waits.append(message.waiting)
            elif what == "end":
                self.end = message.end
            elif what == "begin":
                return self.receive(message.begin)

    def receive(self, begin):
        header = bytearray(begin.deterministic)
        payload = bytearray()
        while len(header) < begin.header_bytes:
            header += self.next_message().header.data
        while len(payload) < begin.payload_bytes:
            message = self.next_message()
            assert message.HasField("chunk"), message.WhichOneof("what")
            assert 0 < len(message.chunk.data) <= 1 << 20
            payload += message.chunk.data
        assert len(payload) == begin.payload_bytes
        self.outgoing.put(pb.FetchRequest(credit=pb.FetchCredit(batches=1)))
        return Batch(begin, bytes(header), bytes(payload))

    def all(self):
        batches = []
        while True:
            batch = self.next()
            if batch is None:
                return batches
            batches.append(batch)

    def close(self):
        self.outgoing.put(None)
        self.call.cancel()
        self.channel.close()


def end_feed(address, feed="default"):
    with channel(address) as ch:
        return rpc.AdminStub(ch).EndFeed(pb.EndFeedRequest(feed=feed), timeout=CALL_S)


def admin(address, call, request, timeout=CALL_S):
    with channel(address) as ch:
        return getattr(rpc.AdminStub(ch), call)(request, timeout=timeout)
