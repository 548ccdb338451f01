"""packd.Job against a real daemon: batches are views that live as long as they are held, resume and commit do what they say, and every
misuse and every outage ends in an error that names it."""

import ctypes
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import unittest

import numpy

import harness
import packd

FEED = {"name": "default", "seq_len": 64, "window": 32}


def push(address, count=200, seed=1, end=True, **more):
    rng = numpy.random.default_rng(seed)
    lengths = rng.integers(1, 60, count)
    with packd.Producer(address, stream="s", **more) as producer:
        producer.put_many(rng.integers(1, 1000, lengths.sum()), lengths=lengths, keys=[f"k{n}" for n in range(count)])
        if end:
            producer.end_feed()
        else:
            producer.flush()


class Ledger:
    """Memory for payloads that counts."""

    def __init__(self):
        self.held, self.given, self.lock = {}, 0, threading.Lock()

    def allocate(self, size, alignment):
        buffer = ctypes.create_string_buffer(size + alignment)
        address = (ctypes.addressof(buffer) + alignment - 1) // alignment * alignment
        with self.lock:
            self.held[address] = buffer
            self.given += 1
        return address

    def release(self, address):
        with self.lock:
            del self.held[address]


class BatchesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Daemon(feeds=[FEED]).start()
        push(cls.server.address)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def open(self, job, **more):
        return packd.Job(self.server.address, job=job, **more)

    def test_views_of_one_buffer(self):
        with self.open("views", rows=2) as job:
            kept = [job.fetch() for _ in range(5)]
        copies = [batch.copy() for batch in kept]
        for batch in kept:
            self.assertEqual(batch.payload.ctypes.data % 64, 0)
            for name, array in batch.items():
                self.assertTrue(array.size == 0 or numpy.shares_memory(array, batch.payload), name)
                self.assertTrue(array.flags.writeable and array.flags.c_contiguous, name)
        self.assertEqual(kept[0]["tokens"].shape, (2, 64))
        self.assertEqual({name: kept[0].dtypes[name] for name in ("tokens", "loss_weight", "cu_seqlens")},
                         {"tokens": "int32", "loss_weight": "float32", "cu_seqlens": "int32"})
        tokens, seq = [batch["tokens"] for batch in kept], [batch.samples.seq for batch in kept]
        del batch, array, kept
        gc.collect()
        for left, numbers, right in zip(tokens, seq, copies):
            numpy.testing.assert_array_equal(left, right["tokens"])
            numpy.testing.assert_array_equal(numbers, right.samples.seq)
            left[:] = 0

    def test_memory_is_given_back(self):
        ledger = Ledger()
        with self.open("ledger", memory=ledger, prefetch=3) as job:
            held = [job.fetch() for _ in range(6)]
            count = sum(1 for _ in job)
        self.assertGreater(count, 20)
        addresses = {batch.payload.ctypes.data for batch in held}
        self.assertLessEqual(addresses, set(ledger.held))
        self.assertLessEqual(ledger.given, 6 + 3 + 2)  # held, prefetched, being received, being looked at: the rest is used again
        del held
        gc.collect()
        self.assertEqual(ledger.held, {})

    def test_prefetch_is_bounded_in_bytes(self):
        """Tensors are not in the job's largest batch as agreed at its opening: what is here ahead is bounded by what batches really have."""
        payload, most = 1 << 18, 3 << 18
        with harness.Daemon(feeds=[FEED]) as server:
            with packd.Producer(server.address, stream="s") as producer:
                for _ in range(24):
                    producer.put([1] * 60, tensors={"frame": packd.Tensor(numpy.zeros(payload, "uint8"), axis="sample")})
                producer.end_feed()
            ledger = Ledger()
            with packd.Job(server.address, job="j", memory=ledger, prefetch=16, prefetch_bytes=most) as job:
                sizes = [batch.payload.nbytes for batch in job]
        self.assertEqual(len(sizes), 24)
        self.assertGreater(min(sizes), payload)
        self.assertLessEqual(ledger.given, most // max(sizes) + 2)  # prefetched, being received, being looked at

    def test_no_memory(self):
        class Empty(Ledger):
            def allocate(self, size, alignment):
                return 0

        with self.open("empty", memory=Empty()) as job, self.assertRaises(packd.OutOfMemory):
            job.fetch()

    def test_header_and_totals(self):
        with self.open("totals", rows=2, accum=2) as job:
            self.assertEqual((job.spec["step_packs"], job.spec["labels"], job.spec["loss_weight"]), (4, "unshifted", "token"))
            steps = {}
            for batch in job:
                steps.setdefault(batch.step, []).append(batch.copy())
            self.assertTrue(job.end["ended"])
            self.assertEqual(job.end["last_step"], max(steps))
        for step, micros in steps.items():
            self.assertEqual([batch.micro for batch in micros], [0, 1])
            totals = micros[0].header["step_totals"]
            self.assertEqual(totals, micros[1].header["step_totals"])
            self.assertEqual(totals["loss"]["tokens"]["count"], sum(int((batch["loss_weight"] != 0).sum()) for batch in micros))
            self.assertEqual(totals["real_tokens"], sum(int(batch["seq_lens"].sum()) for batch in micros))
            self.assertEqual(micros[0].loss_denominator, totals["loss_weight"])
            for batch in micros:
                self.assertEqual(batch.max_seqlen, int(numpy.diff(batch["cu_seqlens"]).max()))
                self.assertEqual(len(batch.samples), batch.header["n_real_segments"])
                self.assertEqual(batch.samples.length.tolist(), batch["seq_lens"][batch["sample_index"] >= 0].tolist())
                made = packd.Batch.from_arrays(dict(batch)).header["batch_totals"]
                self.assertEqual(made["attention_cost"], batch.header["batch_totals"]["attention_cost"])
        again = pickle.loads(pickle.dumps(micros[0]))
        self.assertEqual(again.samples, micros[0].samples)

    def test_resume_and_commit(self):
        with self.open("resume", steps=5) as job:
            first = [batch.copy() for batch in job]
            with self.assertRaises(packd.EndOfFeed) as caught:
                job.fetch()
            self.assertEqual(caught.exception.reason, "STEP_LIMIT")
            with self.assertRaises(packd.InvalidArgument) as caught:
                job.commit(9)
            self.assertEqual((caught.exception.reason, caught.exception.step, caught.exception.job), ("COMMIT_BEYOND_FETCHED", 9, "resume"))
            with self.assertRaisesRegex(packd.InvalidArgument, "commit of step -1"):
                job.commit(-1)
            job.commit(2)
            job.commit(2)
            log_id = job.info["log_id"]
        with self.open("resume", log_id=log_id) as job:
            self.assertEqual(job.fetch().step, 3)
        with self.open("resume", resume_step=1, log_id=log_id) as job:
            for expected in first[2:]:
                numpy.testing.assert_array_equal(job.fetch()["tokens"], expected["tokens"])
        with self.open("resume", resume_step=-1) as job:
            self.assertEqual(job.fetch().step, 0)
        with self.assertRaises(packd.Mismatch):
            self.open("resume", log_id="0" * 32)

    def test_peers_receive_the_same(self):
        worlds = [self.open("peers", dp_size=2, dp_rank=rank, world_token="w") for rank in (0, 1, 1)]
        batches = [[batch.copy() for batch in job] for job in worlds]
        for job in worlds:
            job.close()
        self.assertEqual({len(batches[0])}, {len(rank) for rank in batches})
        for zero, one, peer in zip(*batches):
            numpy.testing.assert_array_equal(one["tokens"], peer["tokens"])
            self.assertEqual((zero.step, zero.dp_rank, one.dp_rank), (one.step, 0, 1))
            self.assertFalse(numpy.array_equal(zero["tokens"], one["tokens"]))

    def test_wrong_worlds(self):
        for bad in (dict(dp_size=2, dp_rank=2), dict(dp_size=0), dict(dp_rank=-1), dict(rows=1 << 40)):
            with self.subTest(**bad), self.assertRaises(packd.InvalidArgument):
                self.open("wrong", **bad)
        with self.assertRaisesRegex(packd.InvalidArgument, "labels='both'"):
            self.open("wrong", labels="both")
        with self.assertRaises(packd.Mismatch):
            self.open("wrong", labels="shifted")
        with self.assertRaises(packd.NotFound) as caught:
            self.open("wrong", feed="nowhere")
        self.assertEqual((caught.exception.feed, caught.exception.grpc_name), ("nowhere", "NOT_FOUND"))
        with self.open("wrong", dp_size=2, rows=2, world_token="one") as job:
            job.fetch()
            with self.assertRaisesRegex(packd.Mismatch, r"\b4\b.*\b8\b|\b8\b.*\b4\b") as caught:  # packs per step: another world without regroup
                self.open("wrong", dp_size=4, rows=2, world_token="two")
            self.assertEqual(caught.exception.grpc_name, "FAILED_PRECONDITION")
            with self.open("wrong", dp_size=4, rows=1, world_token="three") as other:  # the same step in another shape is fine
                self.assertEqual(other.fetch().header["step_packs"], 4)
            with self.assertRaises(packd.Fenced):
                for _ in range(100):
                    job.fetch(timeout=10)
            with self.assertRaises(packd.Fenced):
                job.commit(0)

    def test_closed(self):
        job = self.open("closed")
        batch = job.fetch()
        job.close()
        job.close()
        self.assertEqual(int(batch["tokens"].max()) > 0, True)
        for use in (job.fetch, lambda: job.commit(0), lambda: job.info, job.interrupt):
            with self.assertRaisesRegex(packd.Closed, "job closed has been closed"):
                use()

    def test_threads(self):
        """Several threads may fetch from one job: every batch goes to exactly one of them."""
        with self.open("threads") as job:
            seen, lock = [], threading.Lock()

            def run():
                for batch in job:
                    with lock:
                        seen.append(batch.step)

            threads = [threading.Thread(target=run) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            steps = job.end["last_step"] + 1
        self.assertEqual(sorted(seen), list(range(steps)))


class CommitNeededTest(unittest.TestCase):
    def test_a_trainer_that_listens_never_stalls_its_producers(self):
        """More goes through than the log holds, and the only commits are those that the log has asked for."""
        limits = {"log": {"max_bytes": 64 << 20, "durability": "process"}, "memory": {"ingest": "8MiB", "batches": "64MiB"}}
        told, last = [], None

        def save_and_commit(needed):  # called while fetch waits: the last batch's step is what a checkpoint would hold
            told.append(needed)
            if last is not None:
                job.commit(last)

        with harness.Daemon(feeds=[{"name": "default", "seq_len": 2048, "window": 64}], extra=limits) as server:
            tokens, lengths = numpy.ones(20 << 20, "int32"), [1 << 10] * (20 << 10)

            def produce():
                with packd.Producer(server.address, stream="s") as producer:
                    producer.put_many(tokens, lengths=lengths)
                    producer.end_feed()

            thread = threading.Thread(target=produce)
            thread.start()
            with packd.Job(server.address, job="train", rows=8, on_commit_needed=save_and_commit) as job:
                for batch in job:
                    last = batch.step
                self.assertEqual(job.end["samples"], len(lengths))
                self.assertGreaterEqual(job.info["committed_step"], 0)
            thread.join(60)
        self.assertGreater(told[0]["bytes_held"], 0)
        self.assertGreaterEqual(told[0]["bytes_per_step"], 8 * 2048 * 4)


class OutageTest(unittest.TestCase):
    def setUp(self):
        directory = harness.scratch()
        self.socket = "unix:" + os.path.join(directory, "s")
        self.daemon = harness.Daemon(feeds=[FEED], directory=directory, arguments=["--listen", self.socket])

    def test_waiting_is_explained(self):
        told = []
        with self.daemon, packd.Job(self.socket, job="train", on_waiting=told.append) as job:
            with self.assertRaises(packd.Timeout) as caught:
                job.fetch(timeout=0.5)
            self.assertTrue(caught.exception.reason.startswith("WAIT_"), caught.exception.reason)
            self.assertEqual((caught.exception.job, caught.exception.step, caught.exception.final), ("train", 0, False))
            self.assertEqual(told[0]["reason_name"], caught.exception.reason)
            with self.assertRaises(packd.Timeout):
                job.fetch(timeout=0)
            push(self.socket)
            self.assertEqual(job.fetch().step, 0)

    def test_server_gone_and_back(self):
        with self.daemon:
            push(self.socket, count=400, end=False)
            with packd.Job(self.socket, job="train", world_token="w", prefetch=1) as job:
                job.fetch()
                self.daemon.kill()
                with self.assertRaises(packd.Timeout) as caught:
                    while True:
                        job.fetch(timeout=0.5)
                self.assertEqual((caught.exception.reason, caught.exception.server), ("NOT_CONNECTED", self.socket))
                step = job.info["next_step"]
                self.daemon.start()
                self.assertEqual(job.fetch().step, step)
                job.commit(step)
                self.assertEqual(job.info["reopens"], 1)
        with self.assertRaisesRegex(packd.Timeout, self.socket):
            packd.Job(self.socket, job="train", timeout=0.3)

    def test_ctrl_c_and_interrupt(self):
        with self.daemon, packd.Job(self.socket, job="train") as job:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with self.assertRaises(KeyboardInterrupt):
                job.fetch(timeout=60)
            threading.Timer(0.2, job.interrupt).start()
            with self.assertRaises(packd.Interrupted):
                job.fetch(timeout=60)
            threading.Timer(0.2, job.close).start()
            with self.assertRaises((packd.Interrupted, packd.Closed)):
                job.fetch(timeout=60)

    def test_an_open_job_does_not_keep_a_program_from_ending(self):
        code = ("import packd, sys\n"
                "job = packd.Job(sys.argv[1], job='exit')\n"
                "producer = packd.Producer(sys.argv[1], stream='exit')\n"
                "producer.put([1, 2, 3]); producer.end_feed()\n"
                "batch = job.fetch()\n"
                "print(batch['tokens'][0, :3].tolist())\n")
        with self.daemon:
            started = time.monotonic()
            done = subprocess.run([sys.executable, "-c", code, self.socket], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (0, "[1, 2, 3]\n"), done.stderr)
            self.assertEqual(done.stderr, "")
            self.assertLess(time.monotonic() - started, 30)

    def test_fork(self):
        with self.daemon:
            push(self.socket)
            with packd.Job(self.socket, job="train") as job:
                batch = job.fetch()
                read, write = os.pipe()
                child = os.fork()
                if child == 0:
                    try:
                        del batch  # the parent's; not to be released here
                        job.close()
                        job.fetch()
                    except packd.Error as error:
                        os.write(write, type(error).__name__.encode())
                    finally:
                        os._exit(0)
                os.waitpid(child, 0)
                self.assertIn(os.read(read, 20), (b"Forked", b"Closed"))
                self.assertGreater(int(batch["tokens"].max()), 0)
                self.assertEqual(job.fetch().step, 1)


if __name__ == "__main__":
    unittest.main()
