"""A disk that is smaller than log.max_bytes: the log keeps within what is there, trims, and takes more when there is more; nothing acknowledged is lost
and nobody waits for what cannot come. Disks are quotas of the preloaded library: one that fstatvfs tells of, one that only refuses (EDQUOT), and one of a
file system that cannot reserve."""

import os
import threading
import unittest

import grpc
import numpy as np

import harness
import peer
import preloaded
from peer import pb

FULL = os.environ.get("PACKD_FULL") == "1"
MIB = 1 << 20
DISK = (64 if FULL else 16) * MIB
MAX_BYTES = 1024 * MIB
SEQ_LEN, ROWS, EVERY = 1024, 8, 20
WAIT_S = 600 if FULL else 120
FEED = {"name": "default", "seq_len": SEQ_LEN, "window": 64}
OTHER = {"name": "other", "seq_len": SEQ_LEN, "window": 64}
EXTRA = {"drain": "1s", "log": {"max_bytes": MAX_BYTES, "durability": "process"}, "memory": {"ingest": "8MiB", "batches": "64MiB"},
         "limits": {"max_sample_bytes": "1MiB"}, "validate": {"fraction": 0.01}}
BLOCK = 200  # samples


def sample(seq):
    """Its tokens tell which sample it is."""
    return np.full(64 + seq * 7919 % (SEQ_LEN - 64), 1 + seq % 30000, dtype="<i4")


MEAN_BYTES = 4 * (64 + (SEQ_LEN - 64) // 2)


class Producer(threading.Thread):
    """Pushes samples 0 .. count - 1 and ends the feed; goes on where it was when a call fails for want of the daemon or of space."""

    def __init__(self, address, count, feed="default"):
        super().__init__(daemon=True)
        self.address, self.count, self.feed = address, count, feed
        self.whys, self.stalls, self.acked, self.error, self.done = set(), set(), 0, None, False

    def run(self):
        while not self.done and self.error is None:
            try:
                self.push_on()
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    print("producer:", error.code(), error.details(), flush=True)
                    self.error = error
                threading.Event().wait(0.05)
            except Exception as error:  # told by the test
                print("producer:", repr(error), flush=True)
                self.error = error

    def note(self, push, response):
        if response.HasField("ack"):
            self.whys.add(response.ack.why)
            self.acked = max(self.acked, push.durable_seq)
            if response.ack.HasField("stall"):
                self.stalls.add(response.ack.stall.job)
        return response

    def push_on(self):
        push = peer.Push(self.address, feed=self.feed, timeout=WAIT_S)
        read = push.read
        push.read = lambda: self.note(push, read())
        try:
            push.durable_seq = push.welcome().next_seq
            assert push.durable_seq >= self.acked, (push.durable_seq, self.acked)
            while push.next_seq < self.count:
                push.block([sample(seq) for seq in range(push.next_seq, min(push.next_seq + BLOCK, self.count))])
            push.wait_durable(self.count)
            push.close()
            peer.end_feed(self.address, self.feed)
            self.done = True
        finally:
            push.outgoing.put(None)
            push.channel.close()


class Trainer:
    """The only rank of a job; keeps what it got."""

    def __init__(self, address, job="train", feed="default", seen=None):
        self.address, self.job, self.feed = address, job, feed
        self.opened = peer.open_job(address, job=job, feed=feed, rows=ROWS, world_token="w")
        self.fetch = peer.Fetch(address, self.opened, job=job, feed=feed, timeout=WAIT_S, credit=4)
        self.seen, self.step = {} if seen is None else seen, -1

    def next(self):
        """Takes a step; False: the feed has ended."""
        batch = self.fetch.next()
        if batch is None:
            return False
        self.step = batch.header.step
        for (_, seq, part), tokens in batch.samples():
            assert part == 0 and self.seen.setdefault(seq, self.step) == self.step, (seq, part, self.step)
            assert tokens == sample(seq).tolist(), seq
        return True

    def commit(self):
        with peer.channel(self.address) as channel:
            peer.rpc.FeedStub(channel).Commit(pb.CommitRequest(feed=self.feed, job=self.job, log_id=self.opened.log_id,
                                                               generation=self.opened.generation, step=self.step, fetched=self.step), timeout=60)

    def to_the_end(self):
        while self.next():
            if (self.step + 1) % EVERY == 0:
                self.commit()
        self.fetch.close()


class DiskTest(unittest.TestCase):
    def setUp(self):
        preloaded.skip_sanitized(self)
        self.directory = harness.scratch()
        self.controls = preloaded.Controls(self.directory)
        self.socket = "unix:" + os.path.join(self.directory, "s")

    def daemon(self, *feeds, **controls):
        for field, value in {"quota_bytes": DISK, **controls}.items():
            self.controls.set(field, value)
        return preloaded.daemon(self.controls, self.directory, list(feeds or (FEED,)), self.socket, EXTRA)

    def through(self, packd, disks):
        """Pushes so many times the disk, trains with commits: every sample once; the log keeps within the disk, and trimming goes on."""
        count = disks * DISK // MEAN_BYTES
        producer = Producer(self.socket, count)
        producer.start()
        trainer = Trainer(self.socket)
        trainer.to_the_end()
        producer.join(WAIT_S)
        self.assertTrue(producer.done, producer.error)
        self.assertEqual(sorted(trainer.seen), list(range(count)))
        status = packd.status()
        self.assertGreater(int(status["feeds"][0]["lowest_pack"]), 0)
        self.assertLessEqual(os.path.getsize(os.path.join(self.directory, "data", "data.mdb")), DISK)

    def test_ten_times_the_disk(self):
        with self.daemon() as packd:
            self.through(packd, 10)
            log = packd.status()["log"]
            self.assertEqual(int(log["configured_bytes"]), MAX_BYTES)
            self.assertLess(int(log["max_bytes"]), DISK)
            self.assertEqual(packd.metrics()["packd_log_max_bytes"], int(log["max_bytes"]))
            self.assertIn("what the disk can hold; log.max_bytes is 1.0GiB", packd.packctl("status").stdout)
            warned = [line for line in packd.log().splitlines() if "log_limited_by_disk" in line]
            for word in (os.path.join(self.directory, "data"), "max_bytes=1.0GiB", "free="):
                self.assertIn(word, warned[0])
            self.assertLess(packd.log().index("log_limited_by_disk"), packd.log().index(" ready "))

    def test_a_disk_that_only_refuses(self):
        """A quota is seen by its refusal alone: the limit falls when the log gets there."""
        with self.daemon(quota_silent=1) as packd:
            self.through(packd, 4)
            self.assertLess(int(packd.status()["log"]["max_bytes"]), DISK)
            self.assertGreater(self.controls.get("refused"), 0)

    def test_a_file_system_that_cannot_reserve(self):
        with self.daemon(no_reserve=1) as packd:
            self.through(packd, 4)
            self.assertEqual(packd.log().count("log_not_reserved"), 1)

    def test_full_of_what_a_job_does_not_commit(self):
        """Producers are stalled and told by whom, others are served, a restart changes nothing; space that comes back raises the limit; then commits."""
        count = 6 * DISK // MEAN_BYTES
        producer = Producer(self.socket, count)
        with self.daemon(FEED, OTHER) as packd:
            trainer = Trainer(self.socket)
            for name in ("before", "after"):
                producer.start() if name == "before" else None
                harness.wait_for("the job stands", lambda: not self.steps(trainer, packd), WAIT_S)
                self.assertEqual([stall["job"] for stall in packd.status()["log"]["stalls"]], ["train"])
                harness.wait_for("metrics tell", lambda: self.part_used(packd) > 0.8, WAIT_S)
                self.others_are_served(name)
                if name == "before":
                    trainer.fetch.close()
                    packd.kill()
                    self.assertEqual(producer.stalls, {"train"})
                    self.assertIn(pb.LOG_STALLED, producer.whys)
                    packd.start()
                    trainer = Trainer(self.socket, seen=trainer.seen)
            limit, acked = packd.metrics()["packd_log_max_bytes"], producer.acked
            self.controls.set("quota_bytes", 2 * DISK)
            harness.wait_for("the limit rises", lambda: packd.metrics()["packd_log_max_bytes"] > limit, WAIT_S)
            harness.wait_for("the producer goes on", lambda: producer.acked > acked, WAIT_S)
            self.controls.set("quota_bytes", 0)
            harness.wait_for("the disk is no limit", lambda: packd.metrics()["packd_log_max_bytes"] == MAX_BYTES, WAIT_S)
            self.assertIn("log_limit_lifted", packd.log())
            trainer.to_the_end()
            producer.join(WAIT_S)
            self.assertTrue(producer.done, producer.error)
            self.assertEqual(sorted(trainer.seen), list(range(count)))

    def part_used(self, packd):
        """What the alert on a log that is nearly full compares."""
        metrics = packd.metrics()
        return max(metrics["packd_log_bytes"] / metrics["packd_log_max_bytes"],
                   metrics['packd_feed_log_bytes{feed="default"}'] / metrics['packd_feed_log_max_bytes{feed="default"}'])

    def steps(self, trainer, packd):
        """Takes what is planned. Whether the log may still go on without a commit."""
        planned = int(packd.status()["feeds"][0]["planned_packs"]) // ROWS
        while trainer.step + 1 < planned:
            trainer.next()
        return packd.status()["log"]["state"] != "LOG_STALLED" or trainer.step + 1 < int(packd.status()["feeds"][0]["planned_packs"]) // ROWS

    def others_are_served(self, stream):
        """A reader of the full feed, and the other feed, with its own space."""
        opened = peer.open_job(self.socket, job="look", rows=ROWS, kind=pb.JOB_READER, from_start=True)
        look = peer.Fetch(self.socket, opened, job="look", last_step=3, timeout=WAIT_S)
        self.assertEqual(len(look.all()), 4)
        look.close()
        push = peer.Push(self.socket, feed="other", stream=stream, timeout=WAIT_S)
        push.welcome()
        push.block([sample(seq) for seq in range(200)])
        push.wait_durable(200)
        push.close()


if __name__ == "__main__":
    unittest.main()
