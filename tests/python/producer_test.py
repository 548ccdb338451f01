"""packd.Producer against a real daemon: what is put comes back in batches, what cannot be right is refused with its place named, and a
server that stalls, dies and returns costs time only."""

import os
import signal
import threading
import time
import unittest
import warnings

import numpy

import harness
import packd

FEED = {"name": "default", "seq_len": 64, "window": 32}


def batches(packd_server, job="train", **more):
    with packd.Job(packd_server.address, job=job, reader=True, **more) as opened:
        return [batch.copy() for batch in opened]


def segments(batch):
    """(Sample, tokens, labels, loss weights) of each real segment."""
    for at, row in enumerate(batch["sample_index"]):
        if row >= 0:
            start, length = int(batch["cu_seqlens"][at]), int(batch["seq_lens"][at])
            flat = [batch[name].reshape(-1)[start:start + length] for name in ("tokens", "labels", "loss_weight")]
            yield (batch.samples[int(row)], *flat)


class ProducerTest(unittest.TestCase):
    def test_everything_put_comes_back(self):
        with harness.Daemon(feeds=[FEED]) as server:
            with packd.Producer(server.address, stream="docs", source="web") as producer:
                self.assertEqual(producer.put([5, 6, 7], key="first", group=b"g", version=9), 0)
                self.assertEqual(producer.put(numpy.array([8, 9, 10], "uint16"), labels=[-100, 9, -100], weight=0.5), 1)
                self.assertEqual(producer.put(tokens=[11, 12, 13], loss_mask=[True, False, True]), 2)
                producer.flush()
                self.assertEqual((producer.next_seq, producer.stats()["durable_seq"]), (3, 3))
                self.assertFalse(producer.end_feed())
                self.assertTrue(producer.end_feed())
            found = {sample.seq: (sample, *rest) for batch in batches(server) for sample, *rest in segments(batch)}
            self.assertEqual(sorted(found), [0, 1, 2])
            sample = found[0][0]
            self.assertEqual((sample.stream, sample.source, sample.key, sample.group, sample.version), ("docs", "web", b"first", b"g", 9))
            self.assertEqual([found[n][1].tolist() for n in range(3)], [[5, 6, 7], [8, 9, 10], [11, 12, 13]])
            self.assertEqual(found[1][2].tolist(), [-100, 9, -100])
            self.assertEqual(found[1][3].tolist(), [0, 0.5, 0])
            self.assertEqual(found[2][2].tolist(), [-100, -100, 13])

    def test_put_many_is_put(self):
        rng = numpy.random.default_rng(7)
        lengths = rng.integers(1, 40, 300)
        values = rng.integers(1, 1000, lengths.sum()).astype("int32")
        labels, mask = values + 1, rng.random(len(values)) < 0.7
        starts = numpy.cumsum(lengths) - lengths
        keys, weights = [f"k{n}" for n in range(300)], rng.random(300).astype("float32")
        with harness.Daemon(feeds=[FEED | {"name": name} for name in ("one", "many", "lists")]) as server:
            with packd.Producer(server.address, stream="a", feed="one") as producer:
                for n, (at, count) in enumerate(zip(starts, lengths)):
                    cut = slice(at, at + count)
                    producer.put(values[cut], labels=labels[cut], loss_mask=mask[cut], key=keys[n], weight=float(weights[n]), version=n)
                producer.end_feed()
            with packd.Producer(server.address, stream="b", feed="many", block_bytes=4096) as producer:
                more = {"weights": weights[:200], "versions": numpy.arange(200), "keys": keys[:200]}
                cut = int(starts[200])
                self.assertEqual(producer.put_many(values[:cut], lengths=lengths[:200], labels=labels[:cut], loss_mask=mask[:cut], **more), 0)
                offsets = numpy.concatenate([starts[200:] - cut, [len(values) - cut]])
                more = {"weights": weights[200:], "versions": range(200, 300), "keys": keys[200:]}
                self.assertEqual(producer.put_many(values[cut:], offsets=offsets, labels=labels[cut:], loss_mask=mask[cut:], **more), 200)
                producer.end_feed()
            with packd.Producer(server.address, stream="c", feed="lists") as producer:
                parts = [[int(t) for t in values[at:at + count]] for at, count in zip(starts, lengths)]
                split = lambda array: [array[at:at + count] for at, count in zip(starts, lengths)]
                producer.put_many(parts, labels=split(labels), loss_mask=split(mask), keys=keys, weights=weights, versions=numpy.arange(300))
                producer.end_feed()
            one, *others = [batches(server, feed=feed) for feed in ("one", "many", "lists")]
            self.assertEqual(sum(len(batch.samples) for batch in one), 300)
            for other in others:
                for left, right in zip(one, other, strict=True):
                    self.assertEqual(list(left.samples), [sample._replace(stream="a") for sample in right.samples])
                    for name in left:
                        numpy.testing.assert_array_equal(left[name], right[name], name)

    def test_arguments_that_cannot_be_right(self):
        wide = numpy.zeros((2, 3), "int32")
        cases = [
            (dict(tokens=[]), "EMPTY_SAMPLE", "no tokens"),
            (dict(tokens=[4, -1]), "TOKEN_RANGE", r"tokens\[1\] is -1: expected 0 or more"),
            (dict(tokens=numpy.array([1, 2 ** 31])), "BAD_DTYPE", r"tokens\[1\] is 2147483648: it does not fit int32"),
            (dict(tokens=numpy.array([2 ** 63], "uint64")), "BAD_DTYPE", "does not fit int32"),
            (dict(tokens=[1.0, 2.0]), "BAD_DTYPE", "tokens has dtype float64: expected integers"),
            (dict(tokens=["a"]), "BAD_DTYPE", "expected integers"),
            (dict(tokens=[[1], [2, 3]]), "BAD_DTYPE", "cannot be read as an array"),
            (dict(tokens=wide), "BAD_SHAPE", r"tokens has shape \[2, 3\]"),
            (dict(tokens=[1, 2], labels=[1]), "BAD_SHAPE", "labels has 1 entries for 2 tokens"),
            (dict(tokens=[1, 2], loss_mask=[0.5, 1]), "BAD_DTYPE", "loss_mask has dtype float64"),
            (dict(tokens=[1], weight=float("nan")), "BAD_WEIGHT", "weight nan"),
            (dict(tokens=[1], weight=-1), "BAD_WEIGHT", "weight -1"),
            (dict(tokens=[1], key="k" * 256), "KEY_TOO_LONG", "at most 255"),
            (dict(tokens=[1], key=5), "BAD_DTYPE", "key is int"),
            (dict(tokens=[1], version=-1), "BAD_RANGE", "version -1"),
            (dict(tokens=[1, 2], tensors={"a": numpy.zeros(3)}), "BAD_TENSOR", "tensor a has 3 elements for 2 tokens"),
            (dict(tokens=[1], tensors={"a": numpy.zeros(1, complex)}), "BAD_TENSOR", "tensor a: values of complex128"),
            (dict(tokens=[1], tensors={"a": packd.Tensor([1.0], axis="row")}), "BAD_TENSOR", "axis='row': expected one of .'token'"),
            (dict(tokens=[1], tensors={"a": packd.Tensor(numpy.zeros((1, 1, 1, 1, 1)), axis="ragged")}), "BAD_TENSOR", "at most 3 dimensions"),
            (dict(tokens=[1], weight="x"), "BAD_WEIGHT", "weight 'x': expected a number"),
            (dict(tokens=[1], weight=1e300), "BAD_WEIGHT", "fits float32"),
            (dict(tokens=[1], key="\ud800"), "BAD_NAME", "key .*surrogate"),
            (dict(tokens=[1], tensors={"\ud800": [1]}), "BAD_NAME", "tensors: the name .*surrogate"),
            (dict(tokens=[1], spans=[packd.Span(0, 1)], merge="x"), "BAD_RANGE", "merge 'x'"),
            (dict(tokens=[1], spans=[packd.Span(-1, 1)]), "BAD_SPAN", "offset=-1"),
            (dict(tokens=[1], tensors={"a": packd.Tensor([1], pad_value=[])}), "BAD_TENSOR", r"pad_value \[\]: expected a number"),
            (dict(tokens=[1, 2], spans=[packd.Span(0, 1), packd.Span(1, 1)], tensors={
                "a": packd.Tensor(numpy.zeros(4, "uint8"), axis="ragged", unit="run", run_counts=[4])}), "BAD_SHAPE", "1 entries for 2 spans"),
            (dict(tokens=[1], spans=[packd.Span(0, 1, grid=(1, 2))]), "BAD_SPAN", "expected 3"),
        ]
        many = [
            (dict(tokens=[1, 2, 3], lengths=[1, 1]), "BAD_SHAPE", "samples of 2 tokens in all, but there are 3"),
            (dict(tokens=[1] * 10, lengths=[1000] + [2 ** 62] * 3 + [2 ** 62 - 990]), "BAD_SHAPE", r"lengths\[0\] is 1000, but there are 10 values"),
            (dict(tokens=[1] * 10, lengths=numpy.array([2 ** 63, 2 ** 63, 10], "uint64")), "BAD_SHAPE", r"lengths\[0\] is 9223372036854775808"),
            (dict(tokens=[1] * 10, offsets=[0, 2 ** 63 - 1, -2 ** 63 + 1, 10]), "BAD_SHAPE", r"offsets\[1\] is 9223372036854775807"),
            (dict(tokens=[1] * 10, offsets=[0, -5, 10]), "BAD_SHAPE", r"offsets\[1\] is -5: expected 0 to 10"),
            (dict(tokens=[[1, 2], [3]], labels=[[1], [2, 3]]), "BAD_SHAPE", r"labels\[0\] has 1 entries for 2 tokens"),
            (dict(tokens=[[1, 2], [3]], loss_mask=[[1, 1, 1]]), "BAD_SHAPE", "loss_mask has 1 entries for 2 samples"),
            (dict(tokens=5), "BAD_SHAPE", "tokens is int: expected a list of samples"),
            (dict(tokens=[1, 2], lengths=[1, 1], weights=["a", "b"]), "BAD_WEIGHT", "weights has dtype"),
            (dict(tokens=[1, 2], lengths=[1, 1], keys=5), "BAD_SHAPE", "keys is int"),
            (dict(tokens=[1, 2], lengths=[1, 1], keys=["a", "\ud800"]), "BAD_NAME", r"keys\[1\] .*surrogate"),
            (dict(tokens=[1, 2], lengths=[2, 0]), "EMPTY_SAMPLE", "sample 1 has 0 tokens"),
            (dict(tokens=[1, 2], offsets=[1, 2]), "BAD_SHAPE", "from 0"),
            (dict(tokens=[1, 2], offsets=[0, 2], lengths=[2]), "BAD_SHAPE", "one of them"),
            (dict(tokens=[1, 2], lengths=[1.0, 1.0]), "BAD_DTYPE", "lengths has dtype"),
            (dict(tokens=[1, 2], lengths=[1, 1], keys=["a"]), "BAD_SHAPE", "keys has 1 entries for 2 samples"),
            (dict(tokens=[1, 2], lengths=[1, 1], tensors={"a": numpy.zeros(1)}), "BAD_TENSOR", "tensor a has 1 elements for 2 tokens"),
            (dict(tokens=[1, 2], lengths=[1, 1], tensors={"a": packd.Tensor([1.0], axis="sample")}), "BAD_TENSOR", "put_many takes token tensors"),
            (dict(tokens=[[1], []]), "EMPTY_SAMPLE", r"tokens\[1\] is empty"),
            (dict(tokens=[[1], [-3]]), "TOKEN_RANGE", r"tokens\[1\]\[0\] is -3"),
            (dict(tokens=[1, 2], lengths=[1, 1], weights=[1, float("inf")]), "BAD_WEIGHT", "weight inf"),
        ]
        with harness.Daemon(feeds=[FEED]) as server, packd.Producer(server.address, stream="s") as producer:
            for put, table in ((producer.put, cases), (producer.put_many, many)):
                for arguments, reason, text in table:
                    with self.subTest(arguments=str(arguments)[:60]):
                        with self.assertRaisesRegex(packd.InvalidArgument, text) as caught:
                            put(**arguments)
                        self.assertEqual(caught.exception.reason, reason)
            with self.assertRaises(packd.LimitExceeded) as caught:
                producer.put(numpy.zeros(17 << 20, "int32"))
            self.assertEqual((caught.exception.reason, caught.exception.stream, caught.exception.server), ("TOO_LARGE", "s", server.address))
            with self.assertRaisesRegex(packd.InvalidArgument, "no infinite wait"):
                producer.put([1], timeout=float("inf"))
            self.assertEqual(producer.next_seq, 1)  # the sample before the one whose weight was bad
        with self.assertRaisesRegex(packd.InvalidArgument, "tokenizer_digest has 65 bytes: at most 64"):
            packd.Producer(server.address, stream="s", tokenizer_digest=b"x" * 65)
        for wrong in (dict(stream="not a name"), dict(stream="\ud800"), dict(stream="s", tokenizer_digest="x")):
            with self.assertRaisesRegex(packd.InvalidArgument, "stream|tokenizer_digest is str: expected bytes"):
                packd.Producer(server.address, **wrong)
        with self.assertRaisesRegex(packd.Closed, "has been closed"):
            producer.put([1])

    def test_tensors_and_spans_arrive(self):
        """The server takes what is pushed, counts it durable, and refuses by name what is not what the feed's tensor is."""
        told = []
        with harness.Daemon(feeds=[FEED]) as server:
            producer = packd.Producer(server.address, stream="s", tokenizer_digest=b"one", vocab_size=500, on_reject=told.append)
            tokens = numpy.arange(1, 9, dtype="int32")
            patches = numpy.arange(16 * 3, dtype="float16").reshape(16, 3)
            for _ in range(2):
                producer.put(tokens, spans=[packd.Span(2, 4, view="wrist", grid=(1, 4, 4))], merge=4, tensors={
                    "advantage": numpy.linspace(0, 1, 8, dtype="float32"),
                    "half": packd.Tensor(numpy.full(8, 0x3f80, "uint16"), dtype="bfloat16", pad_value=1.0, align="input"),
                    "pixels": packd.Tensor(patches, axis="ragged", unit="patch", views=["wrist"]),
                    "jpeg": packd.Tensor(numpy.frombuffer(b"jpeg", "uint8"), axis="ragged", unit="run", run_counts=[4]),
                    "action": packd.Tensor(numpy.zeros((5, 2), "float32"), axis="sample", loss=True, pad_mask="action_is_pad"),
                    "action_is_pad": packd.Tensor(numpy.zeros(5, "bool"), axis="sample")})
            producer.put_many(numpy.tile(tokens, 3), lengths=[8, 8, 8], tensors={"advantage": numpy.zeros(24, "float32")})
            producer.flush()
            self.assertEqual((told, producer.stats()["durable_seq"]), ([], 5))
            producer.put(tokens, tensors={"advantage": numpy.zeros(8, "float64")})
            with self.assertRaisesRegex(packd.InvalidArgument, "expected F32 .*found F64") as caught:
                producer.flush()
            self.assertEqual(caught.exception.reason, "BAD_TENSOR")
            producer.close(0)
            server.packctl("end-feed")
            found, ragged = {}, {"pixels": [], "jpeg": []}
            for batch in batches(server):
                for name, parts in ragged.items():
                    parts.append(batch[name])
                for at, row in enumerate(batch["sample_index"]):
                    if row >= 0:
                        cut = slice(int(batch["cu_seqlens"][at]), int(batch["cu_seqlens"][at]) + 8)
                        found[batch.samples[int(row)].seq] = [batch[name].reshape(-1)[cut].tolist() for name in ("advantage", "half")]
                        self.assertEqual(batch["action"][row].shape, (5, 2))
                self.assertEqual(batch.dtypes["half"], "bfloat16")
            self.assertEqual(sorted(found), list(range(5)))
            self.assertEqual(found[1], [[0, *numpy.linspace(0, 1, 8, dtype="float32")[1:].tolist()], [0x3f80] * 8])
            numpy.testing.assert_array_equal(numpy.concatenate(ragged["pixels"]), numpy.concatenate([patches, patches]))
            self.assertEqual(numpy.concatenate(ragged["jpeg"]).tobytes(), b"jpegjpeg")

    def test_arrays_of_every_make(self):
        base = numpy.arange(40, dtype="int64")
        made = [base[::4], base.astype(">i4")[:10], numpy.asfortranarray(base.reshape(10, 4))[:, 1], base.astype("uint8")[:10], range(10)]
        with harness.Daemon(feeds=[FEED]) as server:
            with packd.Producer(server.address, stream="s") as producer:
                for tokens in made:
                    producer.put(tokens)
                producer.end_feed()
            found = {sample.seq: tokens.tolist() for batch in batches(server) for sample, tokens, *_ in segments(batch)}
            self.assertEqual([found[n] for n in range(len(made))], [list(map(int, tokens)) for tokens in made])

    def test_refused_samples_are_told(self):
        told, progress = [], []
        with harness.Daemon(feeds=[FEED]) as server:
            with packd.Producer(server.address, stream="s", on_reject=told.append, on_progress=progress.append, progress_seconds=0) as producer:
                producer.put_many(numpy.ones(300, "int32"), lengths=[100, 50, 150])
                producer.flush()
                self.assertEqual([(r.seq, r.count, r.reason) for r in told], [(0, 1, "OVER_LENGTH"), (2, 1, "OVER_LENGTH")])
                self.assertEqual(producer.stats()["rejected"], 2)
                self.assertEqual(progress[-1]["durable_seq"], 3)
            with self.assertLogs("packd", "WARNING") as logged, self.assertWarns(RuntimeWarning) as warned, \
                    packd.Producer(server.address, stream="t") as producer:
                put = producer.push([{"tokens": numpy.ones(100, "int32")}, {"tokens": numpy.ones(10, "int32")}, {"tokens": numpy.ones(90, "int32")}])
                producer.flush()
                self.assertEqual((put, producer.stats()["rejected"]), (3, 2))
            self.assertIn("samples 0 to 0 refused: OVER_LENGTH", logged.output[0])
            self.assertIn("refuses samples of stream t, they are not stored: OVER_LENGTH", str(warned.warning))
            self.assertEqual(len(warned.warnings), 1)

            def fail(reject):
                raise LookupError(reject.reason)

            producer = packd.Producer(server.address, stream="u", on_reject=fail)
            producer.put(numpy.ones(100, "int32"))
            with self.assertRaisesRegex(LookupError, "OVER_LENGTH"):
                producer.flush()
            producer.close()

    def test_a_callback_that_raises_takes_nothing(self):
        """Whoever tries again puts each sample once: of a put that raises nothing was taken, and put_many says how many."""
        def fail(*_):
            if fails:
                fails.pop()
                raise LookupError("mine")

        fails = []
        with harness.Daemon(feeds=[FEED]) as server:
            for name, more in (("progress", {"on_progress": fail, "progress_seconds": 0}), ("reject", {"on_reject": fail})):
                with self.subTest(name), packd.Producer(server.address, stream=name, **more) as producer:
                    producer.put([1] * 65)
                    harness.wait_for("the reject", lambda: producer.stats()["rejected"] == 1)
                    for put in (lambda: producer.put([1, 2]), lambda: producer.put_many([[1], [2], [3]])):
                        before = producer.next_seq
                        fails.append(1)
                        try:
                            put()
                        except LookupError as error:
                            self.assertEqual((producer.next_seq, getattr(error, "taken", 0)), (before, 0))
                        fails.clear()
            with packd.Producer(server.address, stream="warned") as producer, warnings.catch_warnings():
                warnings.simplefilter("error")
                producer.put([1] * 65)
                harness.wait_for("the reject", lambda: producer.stats()["rejected"] == 1)
                raised = 0
                for _ in range(3):
                    before = producer.next_seq
                    try:
                        producer.put([5])
                    except RuntimeWarning:
                        raised += 1
                        self.assertEqual(producer.next_seq, before)
                producer.flush()
                self.assertEqual((raised, producer.stats()["durable_seq"]), (1, 3))

    def test_a_run_goes_on_where_the_last_one_stopped(self):
        samples = [{"tokens": [n + 1] * (n % 9 + 1), "key": str(n)} for n in range(200)]

        def broken():
            yield from samples[:120]
            raise KeyError("the disk is gone")

        with harness.Daemon(feeds=[FEED]) as server:
            with self.assertRaises(KeyError), packd.Producer(server.address, stream="s", content_id="v1") as producer:
                producer.push(broken())
            with packd.Producer(server.address, stream="s", content_id="v1") as producer:
                first = producer.next_seq
                self.assertLessEqual(first, 120)
                self.assertEqual(producer.push(samples), 200 - first)
                producer.end_feed()
            with self.assertRaises(packd.AlreadyExists) as caught:
                packd.Producer(server.address, stream="s", content_id="v2")
            self.assertEqual((caught.exception.grpc_name, caught.exception.stream), ("ALREADY_EXISTS", "s"))
            keys = sorted(int(sample.key) for batch in batches(server) for sample in batch.samples)
            self.assertEqual(keys, list(range(200)))

    def test_a_newer_producer_fences_the_older(self):
        with harness.Daemon(feeds=[FEED]) as server:
            old = packd.Producer(server.address, stream="s")
            with packd.Producer(server.address, stream="s") as new:
                new.put([1])
                new.flush()
                with self.assertRaises(packd.Fenced):
                    for _ in range(1000):
                        old.put([2])
                        old.flush()
            old.close(0)


class StallTest(unittest.TestCase):
    def setUp(self):
        directory = harness.scratch()
        self.socket = "unix:" + os.path.join(directory, "s")
        self.daemon = harness.Daemon(feeds=[FEED], directory=directory, arguments=["--listen", self.socket])

    def test_back_pressure_then_recovery(self):
        with self.daemon, packd.Producer(self.socket, stream="s", buffer_bytes=64 << 10, block_bytes=8 << 10) as producer:
            sample = numpy.arange(60, dtype="int32")
            producer.put(sample)
            producer.flush()
            os.kill(self.daemon.process.pid, signal.SIGSTOP)
            try:
                with self.assertRaises(packd.Timeout) as caught:
                    while producer.next_seq < 1_000_000:
                        producer.put(sample, timeout=0.3)
                self.assertFalse(caught.exception.final)
                held = producer.stats()
                self.assertLessEqual(held["buffered_bytes"], 64 << 10)
                with self.assertRaises(packd.Timeout) as caught:
                    producer.put_many(numpy.tile(sample, 3000), lengths=[60] * 3000, timeout=0.3)
                self.assertEqual(producer.next_seq, held["next_seq"] + caught.exception.taken)
            finally:
                os.kill(self.daemon.process.pid, signal.SIGCONT)
            left = 3000 - caught.exception.taken
            producer.put_many(numpy.tile(sample, left), lengths=[60] * left)
            producer.flush()
            self.assertEqual(producer.stats()["durable_seq"], held["next_seq"] + 3000)

    def test_server_gone_and_back(self):
        with self.daemon, packd.Producer(self.socket, stream="s") as producer:
            producer.put([1, 2])
            producer.flush()
            self.daemon.kill()
            producer.put([3, 4])
            with self.assertRaises(packd.Timeout) as caught:
                producer.flush(timeout=0.5)
            self.assertEqual((caught.exception.reason, caught.exception.server), ("NOT_CONNECTED", self.socket))
            self.daemon.start()
            producer.flush()
            self.assertEqual(producer.stats()["durable_seq"], 2)
        with self.assertRaisesRegex(packd.Timeout, self.socket):
            packd.Producer(self.socket, stream="s", timeout=0.3)

    def test_ctrl_c_and_interrupt(self):
        """Whatever waits, Ctrl-C ends it at once, and so does interrupt() from another thread."""
        with self.daemon, packd.Producer(self.socket, stream="s") as producer:
            os.kill(self.daemon.process.pid, signal.SIGSTOP)
            try:
                producer.put([1])
                started = time.monotonic()
                for wait in (lambda: producer.flush(timeout=60), lambda: packd.Producer(self.socket, stream="t", timeout=60)):
                    press = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
                    press.start()
                    with self.assertRaises(KeyboardInterrupt):
                        wait()
                threading.Timer(0.2, producer.interrupt).start()
                with self.assertRaises(packd.Interrupted):
                    producer.flush(timeout=60)
                self.assertLess(time.monotonic() - started, 30)
            finally:
                os.kill(self.daemon.process.pid, signal.SIGCONT)
            producer.flush()

    def test_fork(self):
        with self.daemon, packd.Producer(self.socket, stream="s") as producer:
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    for attempt in (lambda: producer.put([1]), lambda: packd.Producer(self.socket, stream="t")):
                        try:
                            attempt()
                            os.write(write, b"n")
                        except packd.Forked:
                            os.write(write, b"y")
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            self.assertEqual(os.read(read, 10), b"yy")
            producer.put([1])


if __name__ == "__main__":
    unittest.main()
