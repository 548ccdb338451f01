"""Calls of one object on many threads, inside callbacks and left alone by Ctrl-C: who waits for whom, and that nobody uses what is freed."""

import os
import signal
import threading
import time
import unittest

import numpy
import torch

import harness
import packd
from packd import _lib

FEED = {"name": "default", "seq_len": 64, "window": 8}
LONG = 60


class CallsTest(unittest.TestCase):
    def setUp(self):
        self.server = harness.Daemon(feeds=[FEED]).start()
        self.addCleanup(self.server.stop)

    def job(self, **more):
        return packd.Job(self.server.address, job="j", **more)

    def push(self, count=40):
        with packd.Producer(self.server.address, stream="s") as producer:
            producer.put_many([[1] * 60] * count)
            producer.flush()

    def running(self, function):
        """A thread in function(), started; its outcome in .outcome."""
        def run():
            try:
                thread.outcome = function()
            except BaseException as error:
                thread.outcome = error
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def waits(self, job):
        """A thread that fetches from a feed with nothing in it, and is at it."""
        thread = self.running(lambda: job.fetch(LONG))
        harness.wait_for("the fetch", lambda: "fetch" in job._calls._lanes)
        return thread

    def stopped(self):
        os.kill(self.server.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.server.process.pid, signal.SIGCONT)

    def test_close_inside_a_callback(self):
        for again in range(20):
            job = self.job(on_waiting=lambda _: job.close())
            with self.assertRaisesRegex(packd.Closed, "job j has been closed"):
                job.fetch(LONG)
            self.assertTrue(job._calls._freed)

    def test_fetch_inside_a_callback_is_refused(self):
        with self.job(on_waiting=lambda _: job.fetch(LONG)) as job:
            with self.assertRaisesRegex(packd.InvalidArgument, r"fetch\(\) inside a callback of fetch\(\)") as caught:
                job.fetch(LONG)
            self.assertEqual(caught.exception.reason, "NESTED_CALL")

    def test_a_callback_that_raises_costs_no_batch(self):
        def fail(_):
            raise LookupError("mine")

        with self.job(on_waiting=fail) as job:
            with self.assertRaisesRegex(LookupError, "mine"):
                job.fetch(LONG)
            self.push()
            steps = []
            while len(steps) < 3:
                try:
                    steps.append(job.fetch(LONG).step)
                except LookupError:
                    pass
            self.assertEqual(steps, [0, 1, 2])

    def test_close_from_another_thread_while_a_callback_runs(self):
        """The callback waits for the thread that closes, which does not wait for it for ever; the fetch frees."""
        joined = []

        def close_elsewhere(_):
            closer = self.running(lambda: job._calls.close(0.2))
            closer.join(LONG)
            joined.append((closer.is_alive(), job._calls._freed))

        job = self.job(on_waiting=close_elsewhere)
        with self.assertRaises(packd.Closed):
            job.fetch(LONG)
        self.assertEqual((joined, job._calls._freed), ([(False, False)], True))

    def test_close_ends_the_calls_of_others(self):
        job = self.job()
        threads = [self.waits(job)] + [self.running(lambda: job.fetch(LONG)) for _ in range(4)]
        job.close()
        for thread in threads:
            thread.join(LONG)
            self.assertIsInstance(thread.outcome, packd.Closed)
        self.assertTrue(job._calls._freed)

    def test_close_after_ctrl_c_waits_for_the_call_left_alone(self):
        self.push()
        with self.job(timeout=LONG) as job:
            step = job.fetch().step
            self.stopped()
            press = self.running(lambda: (harness.wait_for("the commit", lambda: len(job._calls._inside) == 2),
                                          os.kill(os.getpid(), signal.SIGINT)))
            with self.assertRaises(KeyboardInterrupt):
                job.commit(step)
            press.join(LONG)
            self.assertEqual(len(job._calls._inside), 1, "the C call goes on")
        self.assertEqual((job._calls._inside, job._calls._freed), ({}, True))

    def test_ctrl_c_in_end_feed(self):
        with packd.Producer(self.server.address, stream="s", timeout=LONG) as producer:
            producer.put([1, 2, 3])
            producer.flush()
            self.stopped()
            press = self.running(lambda: (harness.wait_for("end_feed", lambda: len(producer._calls._inside) == 2),
                                          os.kill(os.getpid(), signal.SIGINT)))
            with self.assertRaises(KeyboardInterrupt):
                producer.end_feed()
            press.join(LONG)
            producer.close(0)
            self.assertTrue(producer._calls._freed)

    def test_a_timeout_counts_the_wait_for_a_turn(self):
        with self.job() as job:
            thread = self.waits(job)
            with self.assertRaisesRegex(packd.Timeout, r"fetch\(\) has waited .* for the fetch\(\) of thread 'Thread-") as caught:
                job.fetch(0.2)
            self.assertEqual(caught.exception.reason, "BUSY")
            with self.assertRaises(packd.Timeout):
                job.fetch(0)
            self.assertTrue(thread.is_alive())

    def test_a_commit_runs_beside_a_fetch(self):
        self.push()
        with self.job() as job:
            with self.assertRaises(packd.Timeout):  # all that is planned so far is taken
                while True:
                    step = job.fetch(0.5).step
            thread = self.waits(job)
            job.commit(step, LONG)
            self.assertTrue(thread.is_alive())
            self.assertEqual(job.info["committed_step"], step)

    def test_what_a_step_may_be(self):
        self.push()
        with self.job() as job:
            step = job.fetch().step
            self.assertEqual(step, 0)
            for good in (numpy.int64(0), numpy.array(0), torch.tensor(0)):
                job.commit(good)
            for bad in (0.0, numpy.float32(0), None, "0"):
                with self.subTest(repr(bad)), self.assertRaisesRegex(packd.InvalidArgument, "expected an integer"):
                    job.commit(bad)
            for bad in (-1, 1 << 64, 10**30):
                with self.subTest(bad), self.assertRaises(ValueError):
                    job.commit(bad)
        for name in ("rows", "accum", "dp_size", "segment_multiple", "prefetch", "steps"):
            with self.assertRaisesRegex(packd.InvalidArgument, f"{name} 0: expected 1 to"):
                self.job(**{name: 0})

    def test_an_exception_on_the_calls_thread_is_raised_here(self):
        def fail():
            raise LookupError("there")
        with self.assertRaisesRegex(LookupError, "there"):
            _lib.in_thread(fail)

    def test_producer_inside_its_callback(self):
        """put is refused there; close is the end of the call around it."""
        def again(_):
            producer.put([1])
        producer = packd.Producer(self.server.address, stream="a", on_reject=again)
        producer.put([1] * 65)
        with self.assertRaisesRegex(packd.InvalidArgument, r"put\(\) inside a callback of flush\(\)"):
            producer.flush()
        producer.close()
        closing = packd.Producer(self.server.address, stream="b", on_progress=lambda _: closing.close(), progress_seconds=0)
        with self.assertRaises(packd.Closed):
            closing.put([1])
            closing.flush()
        self.assertTrue(closing._calls._freed)


class Alarm(BaseException):
    """What a signal's handler raises."""


class SignalTest(unittest.TestCase):
    """A handler that raises at any moment of a call leaves an object that can be used, closed and freed; also while the exception lives on."""

    ROUNDS = 5000 if os.environ.get("PACKD_FULL") else 700

    def setUp(self):
        self.server = harness.Daemon(feeds=[FEED]).start()
        self.addCleanup(self.server.stop)
        self.armed, self.kept = False, []
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, self.ring))

    def ring(self, *_):
        if self.armed:
            self.armed = False
            raise Alarm

    def interrupted(self, call):
        """call() again and again until the alarm ends it."""
        try:
            self.armed = True
            signal.setitimer(signal.ITIMER_REAL, self.random.uniform(0.00001, 0.0005))
            while True:
                call()
        except Alarm as alarm:
            self.kept = self.kept[-3:] + [alarm]

    def rounds(self, opened, call):
        seed = int(numpy.random.SeedSequence().entropy) % (1 << 32)
        print("seed", seed)
        self.random = numpy.random.default_rng(seed)
        for _ in range(self.ROUNDS):
            self.interrupted(call)
            call()
        opened.close(*[0] * isinstance(opened, packd.Producer))
        self.assertTrue(opened._calls._freed)

    def test_fetch(self):
        job = packd.Job(self.server.address, job="j", reader=True)

        def fetch():
            with self.assertRaises(packd.Timeout) as caught:
                job.fetch(0)
            self.assertNotEqual(caught.exception.reason, "BUSY")

        self.rounds(job, fetch)

    def test_info(self):
        job = packd.Job(self.server.address, job="j", reader=True)
        self.rounds(job, lambda: job.info)

    def test_put(self):
        producer = packd.Producer(self.server.address, stream="s")
        self.rounds(producer, lambda: producer.put([1, 2, 3], timeout=LONG))


class ConnectionTest(unittest.TestCase):
    """What is refused before anything is dialled."""

    def test_tokens(self):
        for token, why in (("secret-token-of-mine\n", "byte 20 of the token is 0x0a.*line end"), ("s\xe9cret-token-of-mine", "byte 1 .*0xc3"),
                           ("secret", "6 bytes: expected 16 to 512"), ("x" * 513, "513 bytes")):
            for kind, name in ((packd.Job, "job"), (packd.Producer, "stream")):
                with self.subTest(token[:20], kind=name), self.assertRaisesRegex(packd.InvalidArgument, why) as caught:
                    kind("127.0.0.1:1", token=token, timeout=0.1, **{name: "x"})
                self.assertEqual(caught.exception.reason, "TOKEN")
                self.assertNotIn("cret", str(caught.exception))
        with self.assertRaises(packd.InvalidArgument) as caught:
            packd.Job("127.0.0.1:1", token="secret-token\0-of-mine", job="x")
        self.assertNotIn("secret", str(caught.exception))

    def test_addresses(self):
        for address in ("localhost", "127.0.0.1:99999", "127.0.0.1:0", "nope:::", "http://127.0.0.1", "unix:", "unix:relative"):
            with self.subTest(address), self.assertRaisesRegex(packd.InvalidArgument, "expected host:port") as caught:
                packd.Job(address, job="x", timeout=0.1)
            self.assertEqual(caught.exception.reason, "SERVER")
        with self.assertRaisesRegex(packd.InvalidArgument, "the path has 301 bytes"):
            packd.Job("unix:/" + "x" * 300, job="x")


if __name__ == "__main__":
    unittest.main()
