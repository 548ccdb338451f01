"""A log that runs full never ends in a silence: either everything goes on, or everybody concerned is told what is missing, and it goes on when
that comes. Sources and streams that are missing, commits rarer than the log is long, windows, steps and balanced parts larger than the log, and
trainers that commit by themselves."""

import threading
import unittest

import grpc

import harness
import peer
from peer import pb

MIB = 1 << 20
LOG = 24 * MIB
DAEMON = {"log": {"max_bytes": LOG, "durability": "process"}, "memory": {"ingest": "8MiB", "batches": "64MiB"}, "limits": {"max_sample_bytes": "64KiB"},
          "validate": {"fraction": 0.02}}
P = 8
TOKENS = 500


class Producer(threading.Thread):
    """Pushes samples of one length in blocks of about 64 KiB until its call is cut off, perhaps while it has no credit; `whys` is what the server
    said about that."""

    def __init__(self, packd, stream, source="", tokens=TOKENS):
        super().__init__(daemon=True)
        self.address, self.stream, self.source, self.tokens = packd.address, stream, source, tokens
        self.whys, self.error, self.push = set(), None, None
        self.halt = threading.Event()

    def run(self):
        while not self.halt.is_set() and self.error is None:
            try:
                self.push_on()
            except grpc.RpcError as error:
                refused = error.code() == grpc.StatusCode.UNAVAILABLE  # LOG_FULL with credit on the way: sent again
                self.error = None if refused or self.halt.is_set() else error
            except Exception as error:  # told by the test
                self.error = error

    def push_on(self):
        """One call, from where the stream is."""
        with_source = {"source": self.source} if self.source else {}
        push = self.push = peer.Push(self.address, stream=self.stream, timeout=600, **with_source)
        read = push.read

        def noting():
            response = read()
            if response.HasField("ack"):
                self.whys.add(response.ack.why)
            return response

        push.read = noting
        push.welcome()
        count = max(1, 16384 // self.tokens)
        while not self.halt.is_set():
            push.block([[7] * self.tokens] * count)

    def stop(self, case):
        self.halt.set()
        self.push.call.cancel()
        self.join(60)
        case.assertFalse(self.is_alive())
        case.assertIsNone(self.error)


class Trainer:
    """The only rank of a job: step after step, with commits."""

    def __init__(self, packd, rows=P, job="train", **more):
        self.address, self.job = packd.address, job
        self.opened = peer.open_job(packd.address, job=job, dp_size=1, rows=rows, arrays=pb.ARRAYS_CORE, world_token="w", **more)
        self.fetch = peer.Fetch(packd.address, self.opened, job=job, timeout=600, arrays=pb.ARRAYS_CORE)
        self.step = -1

    def steps(self, count, commit_every=1):
        for _ in range(count):
            self.step = self.fetch.next().header.step
            if (self.step + 1) % commit_every == 0:
                self.commit()

    def commit(self):
        with peer.channel(self.address) as channel:
            peer.rpc.FeedStub(channel).Commit(pb.CommitRequest(feed="default", job=self.job, log_id=self.opened.log_id, generation=self.opened.generation,
                                                               step=self.step, fetched=self.step), timeout=60)


def feed_of(packd):
    return packd.status()["feeds"][0]


class LivenessTest(unittest.TestCase):
    def check_missing(self, feed, early, late, named):
        """`early` fills its part of the log and is told so, `late` has not come and is named; when it comes, all goes on."""
        with harness.Daemon(feeds=[feed], extra=DAEMON) as packd:
            first = Producer(packd, *early)
            first.start()
            trainer = Trainer(packd)
            harness.wait_for("the first lane has had its share", lambda: pb.LOG_LANE_SHARE in first.whys)
            status = packd.status()
            lane = {lane["name"]: lane for lane in status["feeds"][0]["lanes"]}
            unplanned = int(lane[named[0]]["unplanned_bytes"])
            self.assertGreater(unplanned, LOG // 16)
            self.assertLessEqual(unplanned, LOG // 4 + 8 * MIB)
            self.assertEqual(int(lane[named[1]].get("end", 0)), 0)
            self.assertLessEqual(int(status["feeds"][0]["log_bytes"]), int(status["feeds"][0]["log_max_bytes"]))
            self.assertGreaterEqual(int(status["log"]["unplanned_bytes"]), unplanned)
            waiting = status["feeds"][0]["waiting"]
            self.assertIn(waiting["reason"], ("WAIT_LANE", "WAIT_STREAM"))
            self.assertIn(named[1], waiting["streams"] + waiting.get("sources", []) if "streams" in waiting else waiting["sources"])
            self.assertEqual(status["log"].get("state", "LOG_OK"), "LOG_OK")
            second = Producer(packd, *late)
            second.start()
            trainer.steps(2 * LOG // (P * 2048 * 4))  # two logs' worth
            trainer.fetch.close()
            first.stop(self)
            second.stop(self)

    def test_missing_source(self):
        sources = {"web": {"weight": 1}, "code": {"weight": 1}}
        self.check_missing({"name": "default", "seq_len": 2048, "window": 64, "sources": sources}, ("a", "web"), ("b", "code"), ("web", "code"))

    def test_missing_stream(self):
        feed = {"name": "default", "seq_len": 2048, "window": 64, "merge": "ordered", "streams": ["one", "two"]}
        self.check_missing(feed, ("one",), ("two",), ("one", "two"))

    def test_rare_commits(self):
        """Commits rarer than the log is long: the job is named to producers and ranks, its commit brings everything back; again and again."""
        feed = {"name": "default", "seq_len": 2048, "window": 64}
        with harness.Daemon(feeds=[feed], extra=DAEMON) as packd:
            producer = Producer(packd, "a")
            producer.start()
            trainer = Trainer(packd)
            stalls, states = 0, set()
            messages = trainer.fetch.next_message

            def noting():
                nonlocal stalls
                message = messages()
                if message.HasField("waiting") and message.waiting.reason == pb.WAIT_COMMIT:
                    self.assertEqual(message.waiting.stall.job, "train")
                    states.add(packd.status()["log"]["state"])  # LOG_OK where giving up retained commits has made room meanwhile
                    stalls += 1
                    trainer.commit()
                return message

            trainer.fetch.next_message = noting
            trainer.steps(3 * LOG // (P * 2048 * 4), commit_every=10**9)
            self.assertGreaterEqual(stalls, 2)
            self.assertIn("LOG_STALLED", states)
            self.assertIn(pb.LOG_STALLED, producer.whys)
            trainer.commit()
            trainer.fetch.close()
            producer.stop(self)

    def test_window_larger_than_the_log(self):
        feed = {"name": "default", "seq_len": 2048, "window": 65536}
        with harness.Daemon(feeds=[feed], extra=DAEMON) as packd:
            producer = Producer(packd, "a")
            producer.start()
            trainer = Trainer(packd)
            trainer.steps(2 * LOG // (P * 2048 * 4))
            self.assertIn("log_full_flush", packd.log())
            self.assertGreater(packd.metrics()['packd_log_full_flushes_total{feed="default"}'], 0)
            trainer.fetch.close()
            producer.stop(self)

    def test_steps_larger_than_the_log(self):
        """Steps, balanced parts and intervals between commits that cannot be held are refused, with what would fit; what fits runs."""
        feed = {"name": "default", "seq_len": 2048, "window": 64, "balance": "cost"}
        with harness.Daemon(feeds=[feed], extra=DAEMON) as packd:
            for reason, request in (("STEP_TOO_LARGE", {"rows": 128}), ("COMMIT_TOO_RARE", {"rows": P, "commit_every": 1000})):
                with self.assertRaises(grpc.RpcError) as caught:
                    peer.open_job(packd.address, dp_size=1, world_token="w", **request)
                self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
                self.assertEqual(peer.error_detail(caught.exception).reason, reason)
            producer = Producer(packd, "a")
            producer.start()
            trainer = Trainer(packd, rows=48, commit_every=8)
            trainer.steps(2 * LOG // (48 * 2048 * 4), commit_every=8)
            self.assertEqual(feed_of(packd)["jobs"][0]["spec"]["commit_every"], 8)
            trainer.fetch.close()
            producer.stop(self)

    def test_auto_commit(self):
        """Nobody commits, but libpackd does, three steps behind."""
        feed = {"name": "default", "seq_len": 2048, "window": 64}
        with harness.Daemon(feeds=[feed], extra=DAEMON) as packd:
            producer = Producer(packd, "a")
            producer.start()
            steps = 2 * LOG // (P * 2048 * 4)
            packd.packctl("fetch", "--job", "train", "--dp-size", 1, "--rank", 0, "--rows", P, "--steps", steps, "--auto-commit", 3, "--no-check")
            committed = int(feed_of(packd)["jobs"][0]["committed_step"])
            self.assertLessEqual(committed, steps - 1 - 3)
            self.assertGreaterEqual(committed, steps - 1 - 3 - 2)
            producer.stop(self)

    def test_idle_release(self):
        """A job that has gone for good holds the log until idle_release; then it lets go, visibly."""
        feed = {"name": "default", "seq_len": 2048, "window": 64, "idle_release": "500ms"}
        with harness.Daemon(feeds=[feed], extra=DAEMON) as packd:
            peer.open_job(packd.address, job="gone", dp_size=1, rows=P, world_token="w")
            producer = Producer(packd, "a")
            producer.start()
            trainer = Trainer(packd)
            trainer.steps(2 * LOG // (P * 2048 * 4))
            gone = next(job for job in feed_of(packd)["jobs"] if job["name"] == "gone")
            self.assertTrue(gone["released"])
            self.assertIn("job_released", packd.log())
            self.assertEqual(packd.metrics()['packd_jobs_released_total{feed="default"}'], 1)
            trainer.fetch.close()
            producer.stop(self)


if __name__ == "__main__":
    unittest.main()
