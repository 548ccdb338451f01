"""Far more than the log holds goes through it: commits keep file and memory flat, a job that stops committing stops producers, and what is gone is
said to be gone."""

import os
import random
import threading
import unittest

import grpc

import harness
import peer
from peer import pb

FULL = os.environ.get("PACKD_FULL") == "1"
SAMPLES = 1_000_000 if FULL else 250_000
LOG = 64 << 20
FEED = {"name": "default", "seq_len": 2048, "window": 256}
DAEMON = {"log": {"max_bytes": LOG, "durability": "process"}, "memory": {"ingest": "8MiB", "batches": "64MiB"}}
P = 8


def random_block(rng, count):
    """Samples of 16 to 496 tokens, 1 KiB on average; their first token is the length, so that a reader can check it."""
    lengths = [rng.randrange(16, 497) for _ in range(count)]
    return [[length] * length for length in lengths]


class Producer(threading.Thread):
    def __init__(self, address, count, seed):
        super().__init__(daemon=True)
        self.address, self.count, self.rng = address, count, random.Random(seed)
        self.sent = 0
        self.stalls = []
        self.error = None

    def run(self):
        try:
            push = peer.Push(self.address, stream="s", timeout=600)
            read = push.read

            def noting():
                response = read()
                if response.HasField("ack") and response.ack.why == pb.LOG_STALLED:
                    self.stalls.append(response.ack)
                return response

            push.read = noting
            push.welcome()
            while self.sent < self.count:
                push.block(random_block(self.rng, 100))
                self.sent += 100
            push.wait_durable(self.count)
            push.end_stream()
            push.close()
            peer.end_feed(self.address)
        except Exception as error:  # told by the test
            self.error = error


class Trainer:
    """The only rank of a job."""

    def __init__(self, address, job="train", **more):
        self.address, self.job = address, job
        self.opened = peer.open_job(address, job=job, dp_size=1, rows=P, arrays=pb.ARRAYS_CORE, world_token="w", **more)
        self.fetch = peer.Fetch(address, self.opened, job=job, timeout=600, credit=4, arrays=pb.ARRAYS_CORE)
        self.samples = 0
        self.step = -1

    def next(self):
        batch = self.fetch.next()
        if batch is not None:
            self.step = batch.header.step
            self.samples += sum(1 for part in batch["sample_index"] if part >= 0)
        return batch

    def commit(self):
        with peer.channel(self.address) as channel:
            return peer.rpc.FeedStub(channel).Commit(
                pb.CommitRequest(feed="default", job=self.job, log_id=self.opened.log_id, generation=self.opened.generation, step=self.step,
                                 fetched=self.step), timeout=60)


class TrimTest(unittest.TestCase):
    def setUp(self):
        self.seed = random.randrange(1 << 30)
        print("seed", self.seed)

    def file_bytes(self, packd):
        return os.stat(os.path.join(packd.directory, "data", "data.mdb")).st_size

    def refused(self, call):
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        self.assertEqual(caught.exception.code(), grpc.StatusCode.OUT_OF_RANGE)
        detail = peer.error_detail(caught.exception)
        self.assertEqual(detail.reason, "STEP_TRIMMED")
        return detail

    def test_steady(self):
        """Four times the log and more: the file does not pass the limit, memory stays within what its buffers may take."""
        with harness.Daemon(feeds=[FEED], extra=DAEMON) as packd:
            producer = Producer(packd.address, SAMPLES, self.seed)
            producer.start()
            trainer = Trainer(packd.address)
            seen = []
            while (batch := trainer.next()) is not None:
                if trainer.step % 20 == 19:
                    trainer.commit()
                if trainer.samples > SAMPLES * (len(seen) + 1) // 4:
                    seen.append((self.file_bytes(packd), packd.resident_bytes(), packd.status()["log"]["bytes"]))
            producer.join()
            self.assertIsNone(producer.error)
            self.assertEqual(trainer.samples, SAMPLES)
            print("file, memory, log:", seen)
            self.assertLess(max(file for file, _, _ in seen), LOG * 5 // 4)
            self.assertLess(max(log for _, _, log in seen), LOG)
            self.assertLess(seen[-1][1] - seen[0][1], 24 << 20)  # buffers still fill up; steady_test has the long run
            self.check_trimmed(packd, trainer)

    def check_trimmed(self, packd, trainer):
        reply = trainer.commit()
        job = packd.status()["feeds"][0]["jobs"][0]
        lowest = int(job["lowest_step"])
        self.assertGreater(lowest, trainer.step - 100)
        self.assertLessEqual(lowest, trainer.step)
        self.assertEqual(reply.lowest_step, lowest)
        detail = self.refused(lambda: peer.open_job(packd.address, dp_size=1, rows=P, world_token="w2", resume_step=0))
        self.assertEqual(detail.lowest_step, lowest)
        detail = self.refused(lambda: peer.Fetch(packd.address, trainer.opened, first_step=lowest - 1).next())
        self.assertEqual((detail.step, detail.lowest_step), (lowest - 1, lowest))
        answer = peer.admin(packd.address, "Explain", pb.ExplainRequest(feed="default", job="train", step=lowest - 1))
        self.assertEqual(answer.state, pb.STEP_TRIMMED)
        again = peer.Fetch(packd.address, trainer.opened, first_step=lowest)
        self.assertEqual(again.next().header.step, lowest)
        again.close()
        fresh = peer.open_job(packd.address, job="fresh", dp_size=1, rows=1, world_token="w", from_start=True)
        self.assertEqual(fresh.first_step, 0)
        batch = peer.Fetch(packd.address, fresh, job="fresh").next()
        self.assertEqual(batch.header.packs[0], int(packd.status()["feeds"][0]["lowest_pack"]))

    def test_commits_stop_and_come_back(self):
        """A trainer that does not commit stops producers, is told, and with its commits everything goes on."""
        count = 150_000
        with harness.Daemon(feeds=[FEED], extra=DAEMON) as packd:
            producer = Producer(packd.address, count, self.seed)
            producer.start()
            trainer = Trainer(packd.address)
            needed = []
            messages = trainer.fetch.next_message

            def noting():
                message = messages()
                if message.HasField("commit_needed"):
                    needed.append(message.commit_needed)
                if message.HasField("waiting") and message.waiting.reason == pb.WAIT_COMMIT:
                    needed.append(message.waiting)
                    trainer.commit()
                return message

            trainer.fetch.next_message = noting
            while trainer.next() is not None:
                pass
            producer.join()
            self.assertIsNone(producer.error)
            self.assertEqual(trainer.samples, count)
            stall = producer.stalls[0].stall
            self.assertEqual((stall.feed, stall.job, stall.first_step), ("default", "train", 0))
            self.assertGreater(stall.bytes_held, LOG // 2)
            self.assertGreater(stall.bytes_per_step, P * FEED["seq_len"] * 4)
            self.assertEqual(needed[0].DESCRIPTOR.name, "CommitNeeded")
            self.assertIn("Waiting", {message.DESCRIPTOR.name for message in needed})


if __name__ == "__main__":
    unittest.main()
