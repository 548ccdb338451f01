"""A stand-in server that misbehaves on command: the stock gRPC package, no code of packd.

It speaks Ingest, Feed and Admin as packd.proto says, keeps streams in memory, and makes batches of its own that keep
every rule of the batch contract. `Plan` objects say when a call is to break, stall, shrink its credit or lie.
"""

import concurrent.futures
import ctypes
import threading

import grpc
import numpy as np

from peer import pb, rpc

XXH = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
XXH.restype, XXH.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]

LOG_ID = "0123456789abcdef0123456789abcdef"
WIDTH, ROWS = 64, 2


class Abort(Exception):
    """Ends a call with a status and an ErrorDetail."""

    def __init__(self, code, reason="", text="", retry_after_ms=0):
        self.code, self.text = code, text or reason
        self.detail = pb.ErrorDetail(reason=reason, text=text, seq=-1, step=-1, lowest_step=-1,
                                     retry_after_ms=retry_after_ms) if reason else None

    def end(self, context):
        if self.detail is not None:
            context.set_trailing_metadata((("packd-error-bin", self.detail.SerializeToString()),))
        context.abort(self.code, self.text)


class Stream:
    def __init__(self):
        self.samples = []  # (tokens, key) by seq; None where refused
        self.ended = False
        self.content_id = None


class PushPlan:
    """What happens on the n-th Push call; every field may be changed by a test."""

    def __init__(self, credit=1 << 30, grant=None, break_after_blocks=None, break_after_pieces=None, status=None, silent=False,
                 ack=True, piece=1 << 18, reject=None, why=0, next_seq=None, head=1 << 19, samples=4096,
                 raises=(0,), step=1):
        self.credit, self.grant = credit, grant
        self.break_after_blocks, self.break_after_pieces = break_after_blocks, break_after_pieces
        self.status = status or Abort(grpc.StatusCode.UNAVAILABLE)
        self.silent, self.ack, self.piece, self.reject, self.why = silent, ack, piece, reject, why
        self.next_seq, self.head, self.samples = next_seq, head, samples
        self.step = step  # bytes by which the credit rises at least
        self.raises = list(raises)  # max_piece_bytes of one Ack after the other, of the last one on and on

    def piece_told(self):
        told = self.raises.pop(0) if len(self.raises) > 1 else self.raises[0]
        self.piece = max(self.piece, told)
        return told


class Ingest(rpc.IngestServicer):
    def __init__(self, fake):
        self.fake = fake

    def Push(self, requests, context):
        try:
            yield from self.push(requests, context)
        except Abort as abort:
            abort.end(context)

    def push(self, requests, context):
        fake = self.fake
        with fake.lock:
            plan = fake.push_plans.pop(0) if fake.push_plans else PushPlan()
        hello = next(requests).hello
        fake.hellos.append(hello)
        if plan.silent:
            fake.stopping.wait(30)
            return
        stream = fake.streams.setdefault(hello.stream, Stream())
        if stream.content_id is None:
            stream.content_id = hello.content_id
        if stream.content_id != hello.content_id:
            raise Abort(grpc.StatusCode.ALREADY_EXISTS, "CONTENT_CHANGED",
                        f"stream {hello.stream} reads {stream.content_id!r}, not {hello.content_id!r}")
        if plan.break_after_blocks == 0:
            raise plan.status
        start = len(stream.samples) if plan.next_seq is None else plan.next_seq
        yield pb.PushResponse(welcome=pb.Welcome(
            log_id=LOG_ID, incarnation=fake.incarnation, durability=pb.DURABILITY_PROCESS, next_seq=start,
            credit_bytes=plan.credit, why=plan.why, max_piece_bytes=plan.piece, max_head_bytes=plan.head, max_block_bytes=1 << 22,
            max_sample_bytes=1 << 22, max_block_samples=plan.samples, stream_ended=stream.ended, seq_len=WIDTH))
        yield from self.receive(requests, stream, plan)

    def receive(self, requests, stream, plan):
        fake = self.fake
        used, granted, blocks, pieces = 0, plan.credit, 0, 0
        head, body = None, b""
        for request in requests:
            what = request.WhichOneof("what")
            if what == "end":
                assert request.end.next_seq == len(stream.samples), (request.end.next_seq, len(stream.samples))
                stream.ended = True
                yield pb.PushResponse(ended=pb.StreamEnded(next_seq=len(stream.samples)))
                continue
            if what == "block":
                assert head is None, "a block inside a block"
                head, piece, cost = request.block.head, request.block.body, request.block.head.ByteSize()
                assert cost <= plan.head and 0 < len(head.lengths) <= plan.samples
                body = b""
            else:
                assert head is not None, "a chunk without a block"
                piece, cost = request.chunk.body, 0
            assert len(piece) <= plan.piece
            fake.pieces.append(len(piece))
            used += cost + len(piece)
            pieces += 1
            fake.most_used_over_credit = max(fake.most_used_over_credit, used - granted)
            body += piece
            if plan.break_after_pieces == pieces:
                raise plan.status
            if plan.grant and used + plan.grant - granted >= plan.step:
                granted = used + plan.grant
                yield pb.PushResponse(ack=pb.Ack(durable_seq=len(stream.samples), credit_bytes=granted, why=plan.why,
                                                 max_piece_bytes=plan.piece_told()))
            if len(body) < head.body_bytes:
                continue
            assert len(body) == head.body_bytes
            yield from self.store(stream, head, body, plan)
            head = None
            blocks += 1
            if plan.break_after_blocks == blocks:
                raise plan.status
            if plan.ack:
                yield pb.PushResponse(ack=pb.Ack(durable_seq=len(stream.samples), credit_bytes=granted, why=plan.why,
                                                 duplicates=fake.duplicates, max_piece_bytes=plan.piece_told()))

    def store(self, stream, head, body, plan):
        tokens = np.frombuffer(body, dtype="<i4")
        total = sum(head.lengths)
        labels = tokens[total:] if head.has_labels else None
        assert len(tokens) == total * (2 if head.has_labels else 1)
        at = run = 0
        for i, length in enumerate(head.lengths):
            seq = head.first_seq + i
            runs = None
            if len(head.mask_run_counts):
                runs = list(head.mask_runs[run:run + head.mask_run_counts[i]])
                run += head.mask_run_counts[i]
                assert not runs or sum(runs) == length
            assert seq <= len(stream.samples), f"gap: {seq} after {len(stream.samples)}"
            sample = {"tokens": tokens[at:at + length].tolist(), "key": head.keys[i] if len(head.keys) else b"",
                      "group": head.groups[i] if len(head.groups) else b"", "runs": runs,
                      "labels": labels[at:at + length].tolist() if labels is not None else None,
                      "weight": head.weights[i] if len(head.weights) else 1.0,
                      "version": head.versions[i] if len(head.versions) else 0}
            at += length
            if seq < len(stream.samples):
                self.fake.duplicates += 1
            elif plan.reject and plan.reject(seq, sample):
                stream.samples.append(None)
                yield pb.PushResponse(reject=pb.Reject(seq=seq, reason="OVER_LENGTH", detail=f"{length} tokens", count=1))
            else:
                stream.samples.append(sample)


def make_batch(step, micro, dp_rank, dp_size=1, accum=1, job="train", arrays=pb.ARRAYS_ALL, shift=0):
    """(header, payload): ROWS rows, each with two segments of known tokens and some padding."""
    R, W = ROWS, WIDTH
    T = R * W
    tokens = np.zeros(T, "<i4")
    positions, ids, labels = np.zeros(T, "<i4"), np.zeros(T, "<i4"), np.full(T, -100, "<i4")
    weight = np.zeros(T, "<f4")
    cu, lens, index, real, padded = [0], [], [], [0], [0]
    table = pb.SampleTable(streams=["s"], sources=["default"])
    cost = loss = 0
    for row in range(R):
        at = row * W
        for k, n in enumerate((20 + row, 30)):
            seq = ((step * accum + micro) * dp_size + dp_rank) * 2 * R + row * 2 + k
            tokens[at:at + n] = 1 + (seq + shift + np.arange(n)) % 200
            positions[at:at + n] = np.arange(n)
            ids[at:at + n] = k + 1
            labels[at + 1:at + n] = tokens[at + 1:at + n]
            weight[at + 1:at + n] = 1
            at += n
            cu.append(at)
            lens.append(n)
            index.append(len(table.seq))
            real.append(real[-1] + n)
            padded.append(at)
            table.stream.append(0)
            table.seq.append(seq)
            table.length.append(n)
            table.loss_weights.append(1)
            table.loss_tokens.append(n - 1)
            cost += n * n
            loss += n - 1
        positions[at:(row + 1) * W] = np.arange((row + 1) * W - at)
        cu.append((row + 1) * W)
        lens.append(0)
        index.append(-1)
        padded[-1] = (row + 1) * W
    parts = [("tokens", tokens.reshape(R, W), False), ("cu_seqlens", np.array(cu, "<i4"), False),
             ("seq_lens", np.array(lens, "<i4"), False), ("sample_index", np.array(index, "<i4"), False),
             ("labels", labels.reshape(R, W), True), ("positions", positions.reshape(R, W), True),
             ("segment_ids", ids.reshape(R, W), True), ("loss_weight", weight.reshape(R, W), True),
             ("cu_seqlens_real", np.array(real, "<i4"), True), ("cu_seqlens_padded", np.array(padded, "<i4"), True)]
    payload, infos, core = bytearray(), [], None
    for name, array, derivable in parts:
        if derivable and core is None:
            core = len(payload)
        raw = array.tobytes()
        infos.append(pb.ArrayInfo(name=name, dtype=pb.DTYPE_FLOAT32 if array.dtype.kind == "f" else pb.DTYPE_INT32,
                                  shape=array.shape, offset=len(payload), bytes=len(raw), xxh3_64=XXH(raw, len(raw)),
                                  derivable=derivable))
        payload += raw + bytes(-len(raw) % 64)
    tail = T - sum(lens)
    totals = pb.Totals(real_tokens=sum(lens), tail_padding=tail, samples=len(table.seq), segments=len(table.seq),
                       attention_cost=cost, loss=[pb.LossTotal(name="tokens", count=loss, weight=float(loss))])
    header = pb.BatchHeader(
        format=1, feed="default", job=job, step=step, micro=micro, dp_rank=dp_rank, rows=R, width=W,
        step_packs=R * dp_size * accum, dp_size=dp_size, accum=accum, payload_bytes=len(payload), core_bytes=core, arrays=infos,
        packs=[(step * accum + micro) * R + r for r in range(R)], batch=totals, step_totals=totals, n_segments=len(lens),
        n_real_segments=len(table.seq), max_seqlen=max(b - a for a, b in zip(cu, cu[1:])), max_seqlen_real=30,
        max_seqlen_padded=max(b - a for a, b in zip(padded, padded[1:])), labels=pb.LABELS_UNSHIFTED,
        loss_weight=pb.LOSS_WEIGHT_TOKEN, samples=table)
    return header, bytes(payload[:core] if arrays == pb.ARRAYS_CORE else payload)


class FetchPlan:
    """What happens on the n-th Fetch call. break_at: (step, micro, bytes of payload sent before)."""

    def __init__(self, break_at=None, status=None, damage=None, wait_at=None, lie=None, header_piece=None, chunk=100):
        self.break_at, self.status = break_at, status or Abort(grpc.StatusCode.UNAVAILABLE)
        self.damage, self.wait_at, self.lie = damage, wait_at, lie
        self.header_piece, self.chunk = header_piece, chunk


class Feed(rpc.FeedServicer):
    def __init__(self, fake):
        self.fake = fake

    def OpenJob(self, request, context):
        fake = self.fake
        fake.opens.append(request)
        try:
            if fake.open_plans:
                abort = fake.open_plans.pop(0)
                if abort is not None:
                    raise abort
        except Abort as abort:
            abort.end(context)
        first = request.resume_step + 1 if request.WhichOneof("start") == "resume_step" else fake.committed + 1
        fake.accum = request.accum or 1
        fake.dp_size = request.dp_size
        spec = pb.JobSpec(step_packs=ROWS * request.dp_size * fake.accum, dp_size=request.dp_size, rows=ROWS, accum=fake.accum,
                          seq_len=WIDTH, width="fixed", labels=pb.LABELS_UNSHIFTED, loss_weight=pb.LOSS_WEIGHT_TOKEN, seg_align=1,
                          total_align=1, pad_segment=1024, max_batch_bytes=1 << 16, last_step="pad")
        return pb.OpenJobResponse(log_id=LOG_ID, incarnation=fake.incarnation, generation=fake.generation, first_step=first, spec=spec,
                                  committed_step=fake.committed, server_version="fake", skipped=fake.skipped)

    def Fetch(self, requests, context):
        try:
            yield from self.fetch(requests, context)
        except Abort as abort:
            abort.end(context)

    def fetch(self, requests, context):
        fake = self.fake
        with fake.lock:
            plan = fake.fetch_plans.pop(0) if fake.fetch_plans else FetchPlan()
        opened = next(requests).open
        fake.fetches.append(opened)
        if opened.generation != fake.generation:
            raise Abort(grpc.StatusCode.ABORTED, "FENCED", f"the job is at generation {fake.generation}")
        credit = threading.Semaphore(opened.credit_batches)
        fake.credits.append(opened.credit_batches)
        threading.Thread(target=self.read_credit, args=(requests, credit, fake.credits), daemon=True).start()
        step, micro = opened.first_step, opened.first_micro
        last = opened.last_step if opened.WhichOneof("until") == "last_step" else fake.steps - 1
        while step <= min(last, fake.steps - 1):
            if any(s.first <= step <= s.last for s in fake.skipped):
                step, micro = step + 1, 0
                continue
            if plan.wait_at == step:
                yield pb.FetchResponse(waiting=pb.Waiting(reason=pb.WAIT_SAMPLES, step=step, streams=["slow"], streams_total=1,
                                                          text="the window needs 3 samples", since_unix_ms=1))
                fake.stopping.wait(30)
                return
            while not credit.acquire(timeout=0.2):
                if not context.is_active():
                    return
            yield from self.batch(opened, plan, step, micro)
            micro += 1
            if micro == fake.accum:
                step, micro = step + 1, 0
        if opened.WhichOneof("until") != "last_step" or last > fake.steps - 1:
            yield pb.FetchResponse(end=pb.EndOfFeed(last_step=fake.steps - 1, packs=fake.steps * ROWS, samples=1))

    @staticmethod
    def read_credit(requests, credit, credits):
        try:
            for request in requests:
                credits.append(request.credit.batches)
                for _ in range(request.credit.batches):
                    credit.release()
        except grpc.RpcError:
            pass

    def batch(self, opened, plan, step, micro):
        fake = self.fake
        header, payload = make_batch(step, micro, opened.dp_rank, fake.dp_size, fake.accum, opened.job, opened.arrays)
        if plan.lie:
            plan.lie(header)
        if plan.damage == (step, micro):
            payload = payload[:100] + bytes([payload[100] ^ 1]) + payload[101:]
        raw = header.SerializeToString(deterministic=True)
        piece = plan.header_piece or len(raw)
        yield pb.FetchResponse(begin=pb.BatchBegin(deterministic=raw[:piece], payload_bytes=len(payload), header_bytes=len(raw),
                                                   delivery=pb.Delivery(log_id=LOG_ID, incarnation=fake.incarnation, verdict=1)))
        for at in range(piece, len(raw), piece):
            yield pb.FetchResponse(header=pb.HeaderChunk(data=raw[at:at + piece]))
        for at in range(0, len(payload), plan.chunk):
            if plan.break_at and plan.break_at[:2] == (step, micro) and at >= plan.break_at[2]:
                raise plan.status
            yield pb.FetchResponse(chunk=pb.BatchChunk(data=payload[at:at + plan.chunk]))

    def Commit(self, request, context):
        fake = self.fake
        try:
            if fake.commit_plans:
                abort = fake.commit_plans.pop(0)
                if abort is not None:
                    raise abort
            if request.generation != fake.generation:
                raise Abort(grpc.StatusCode.ABORTED, "FENCED", f"the job is at generation {fake.generation}")
        except Abort as abort:
            abort.end(context)
        fake.commits.append(request)
        fake.committed = max(fake.committed, request.step)
        return pb.CommitResponse(committed_step=fake.committed, incarnation=fake.incarnation)


class Admin(rpc.AdminServicer):
    def __init__(self, fake):
        self.fake = fake

    def EndFeed(self, request, context):
        already, self.fake.feed_ended = self.fake.feed_ended, True
        return pb.EndFeedResponse(samples=sum(len(s.samples) for s in self.fake.streams.values()), already=already)

    def Status(self, request, context):
        if self.fake.status_pages:
            self.fake.status_asked.append(request)
            return self.fake.status_pages[request.page]
        jobs = [pb.JobStatus(name="train", generation=self.fake.generation, committed_step=self.fake.committed, planned_step=9,
                             delivered_step=8, spec=pb.JobSpec(step_packs=2), started=True)]
        lanes = [pb.LaneStatus(name="feed", position=(1 << 63) + 5)]
        feeds = [pb.FeedStatus(name="default", jobs=jobs, lanes=lanes, streams_total=len(self.fake.streams))]
        return pb.StatusResponse(server_version="fake", log_id=LOG_ID, incarnation=self.fake.incarnation, state=pb.STATE_SERVING,
                                 ready=True, feeds=feeds)


class Fake:
    """with Fake() as fake: fake.address, fake.push_plans = [...]"""

    def __init__(self, steps=6):
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.incarnation, self.generation, self.steps, self.committed = 7, 1, steps, -1
        self.streams, self.hellos, self.duplicates, self.most_used_over_credit = {}, [], 0, -(1 << 60)
        self.pieces = []  # body bytes of each message of a block
        self.push_plans, self.fetch_plans, self.open_plans, self.commit_plans = [], [], [], []
        self.opens, self.fetches, self.commits, self.credits, self.skipped = [], [], [], [], []
        self.status_pages, self.status_asked = {}, []  # {page: StatusResponse}; the requests for them
        self.accum = self.dp_size = 1
        self.feed_ended = False
        self.port = 0

    def start(self):
        self.stopping.clear()
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        rpc.add_IngestServicer_to_server(Ingest(self), self.server)
        rpc.add_FeedServicer_to_server(Feed(self), self.server)
        rpc.add_AdminServicer_to_server(Admin(self), self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        assert self.port, "the port is taken"
        self.address = f"127.0.0.1:{self.port}"
        self.server.start()
        return self

    def stop(self):
        self.stopping.set()
        self.server.stop(0).wait()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()
