"""A run goes on for as long as it likes: with commits at regular intervals the log, its file and the daemon's memory stand still, whatever is packed
and however; a job that stops committing stops the producers, and its next commit sets everything going again.

With PACKD_FULL: 10 million samples through a log of 512 MiB in every form, commits every 100 steps; PACKD_STEADY_SAMPLES sets another number."""

import os
import random
import statistics
import threading
import time
import unittest

import grpc
import numpy as np

import harness
import peer
from peer import pb

FULL = os.environ.get("PACKD_FULL") == "1"
SAMPLES = int(os.environ.get("PACKD_STEADY_SAMPLES", 10_000_000 if FULL else 150_000))
MIB = 1 << 20
LOG = (512 if FULL else 24) * MIB
SEQ_LEN, ROWS = (8192, 8) if FULL else (2048, 8)
STEP_BYTES = SEQ_LEN * ROWS * 4
EVERY = 100 if FULL else 30  # steps between commits
LAG = 6 * EVERY if FULL else 2 * EVERY  # steps that the slow job is behind
BLOCK = 1000 if FULL else 250  # samples; they divide SAMPLES
MEASURES = 24
FILE_MAX = LOG * 5 // 4 if FULL else LOG * 3 // 2
FILE_SLACK, MEMORY_SLACK = (LOG // 8, 8 * MIB) if FULL else (LOG // 2, 24 * MIB)  # a short run has hardly begun to reuse what it has
FEED = {"name": "default", "seq_len": SEQ_LEN, "window": 1024}
DAEMON = {"log": {"max_bytes": LOG, "durability": "process"}, "memory": {"ingest": "8MiB", "batches": "64MiB"}, "limits": {"max_sample_bytes": BLOCK * 512},
          "validate": {"fraction": 0.01}}


class Producer(threading.Thread):
    """Pushes `count` samples of 8 to 120 tokens in blocks that are all alike, and ends its stream. `whys`: what it was told while it had no credit."""

    def __init__(self, address, count, seed, stream="s", source=""):
        super().__init__(daemon=True)
        rng = random.Random(seed)
        self.lengths = [rng.randrange(8, 121) for _ in range(BLOCK)]
        self.body = np.full(sum(self.lengths), 7, dtype="<i4").tobytes()
        self.address, self.count = address, count
        self.hello = {"stream": stream, **({"source": source} if source else {})}
        self.whys, self.error, self.done = set(), None, False

    def run(self):
        while not self.done and self.error is None:
            try:
                self.push_on()
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:  # LOG_FULL with credit on the way: sent again
                    self.error = error
            except Exception as error:  # told by the test
                self.error = error

    def read(self, push):
        response = push.read()
        if response.HasField("ack"):
            self.whys.add(response.ack.why)

    def push_on(self):
        """One call, from where the stream is."""
        push = peer.Push(self.address, timeout=3600, **self.hello)
        push.welcome()
        while push.next_seq < self.count:
            head = pb.BlockHead(first_seq=push.next_seq, lengths=self.lengths, body_bytes=len(self.body))
            cost = len(self.body) + head.ByteSize()
            while push.sent_bytes + cost > push.credit_bytes:
                self.read(push)
            push.sent_bytes += cost
            push.send(pb.PushRequest(block=pb.SampleBlock(head=head, body=self.body)))
            push.next_seq += BLOCK
        while push.durable_seq < self.count:
            self.read(push)
        push.end_stream()
        push.close()
        self.done = True


class Trainer:
    """The only rank of a job."""

    def __init__(self, address, job="train"):
        self.address, self.job = address, job
        self.opened = peer.open_job(address, job=job, dp_size=1, rows=ROWS, arrays=pb.ARRAYS_CORE, world_token="w")
        self.fetch = peer.Fetch(address, self.opened, job=job, timeout=3600, credit=4, arrays=pb.ARRAYS_CORE)
        self.samples, self.step, self.committed = 0, -1, -1

    def next(self):
        """Takes a step; False: the feed has ended."""
        batch = self.fetch.next()
        if batch is None:
            return False
        self.step = batch.header.step
        self.samples += int((batch["sample_index"] >= 0).sum())
        return True

    def commit(self):
        with peer.channel(self.address) as channel:
            peer.rpc.FeedStub(channel).Commit(
                pb.CommitRequest(feed="default", job=self.job, log_id=self.opened.log_id, generation=self.opened.generation, step=self.step,
                                 fetched=self.step), timeout=60)
        self.committed = self.step

    def on_schedule(self):
        if (self.step + 1) % EVERY == 0:
            self.commit()


class Follower(threading.Thread):
    """A slow job: it begins a step once the other one is LAG steps ahead, or done."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.trainer = Trainer(address, job="slow")
        self.turn = threading.Condition()
        self.may_reach, self.error = -LAG, None

    def let(self, step):
        with self.turn:
            self.may_reach = step
            self.turn.notify()

    def run(self):
        try:
            while self.go_on() and self.trainer.next():
                self.trainer.on_schedule()
        except Exception as error:  # told by the test
            self.error = error

    def go_on(self):
        with self.turn:
            return self.turn.wait_for(lambda: self.trainer.step < self.may_reach, timeout=600)


class Measures:
    """Log, file and memory of a daemon, at equal distances of a run."""

    def __init__(self, packd, count=SAMPLES):
        self.packd, self.count, self.taken = packd, count, []
        self.started = time.monotonic()

    def at(self, samples):
        if samples * MEASURES >= self.count * (len(self.taken) + 1):
            log = peer.admin(self.packd.address, "Status", pb.StatusRequest()).log.bytes
            file = os.stat(os.path.join(self.packd.directory, "data", "data.mdb")).st_size
            self.taken.append((log, file, self.packd.resident_bytes()))

    def check(self, case, name):
        """Nothing grows behind the first third, when every buffer has been full once; but the file with a log that is fuller than it was."""
        third = len(self.taken) // 3
        seconds = time.monotonic() - self.started
        print(f"{name}: {self.count} samples, {self.count / seconds:.0f}/s, log limit {LOG // MIB} MiB, steps of {STEP_BYTES // 1024} KiB")
        for what, values in zip(("log", "file", "anonymous memory"), zip(*self.taken)):
            early, late = values[:third], values[third:]
            print(f"  {what}: first third at most {max(early) / MIB:.1f} MiB, then {min(late) / MIB:.1f} to {max(late) / MIB:.1f} MiB, "
                  f"median {statistics.median(late) / MIB:.1f}, last {late[-1] / MIB:.1f}")
        logs, files, memory = zip(*self.taken)
        case.assertLess(max(logs), LOG)
        case.assertLess(max(files), FILE_MAX)
        fuller = max(0, max(logs[third:]) - max(logs[:third]))
        case.assertLess(max(files[third:]) - max(files[:third]), fuller + FILE_SLACK)
        case.assertLess(max(memory[third:]) - max(memory[:third]), MEMORY_SLACK)


class SteadyTest(unittest.TestCase):
    def setUp(self):
        self.seed = random.randrange(1 << 30)
        print("seed", self.seed)

    def producers(self, packd, sources):
        counts = {source: SAMPLES * parts // sum(sources.values()) // BLOCK * BLOCK for source, parts in sources.items()}
        started = [Producer(packd.address, count, self.seed, source or "s", source) for source, count in counts.items()]
        for producer in started:
            producer.start()
        return started

    def end_when_pushed(self, packd, producers):
        """The feed ends behind the last sample, however far the trainers are by then."""
        def wait():
            for producer in producers:
                producer.join()
            peer.end_feed(packd.address)
        ender = threading.Thread(target=wait, daemon=True)
        ender.start()
        return ender

    def run_through(self, name, follower=False, sources=None, **feed):
        if sources:
            feed["sources"] = {source: {"weight": weight} for source, weight in sources.items()}
        with harness.Daemon(feeds=[{**FEED, **feed}], extra=DAEMON) as packd:
            trainer = Trainer(packd.address)
            slow = Follower(packd.address) if follower else None
            if slow:
                slow.start()
            producers = self.producers(packd, sources or {"": 1})
            ender = self.end_when_pushed(packd, producers)
            total = sum(producer.count for producer in producers)
            measures = Measures(packd, total)
            while trainer.next():
                trainer.on_schedule()
                measures.at(trainer.samples)
                if slow:
                    slow.let(trainer.step - LAG)
            if slow:
                slow.let(1 << 62)
                slow.join(600)
                self.assertIsNone(slow.error)
                self.assertEqual(slow.trainer.samples, total)
                slow.trainer.fetch.close()
            ender.join(60)
            self.assertEqual([producer.error for producer in producers], [None] * len(producers))
            self.assertEqual(trainer.samples, total)
            self.assertEqual(packd.metrics()['packd_retained_commits_given_up_total{feed="default"}'], 0)
            trainer.fetch.close()
            measures.check(self, name)

    def test_plain(self):
        self.run_through("plain")

    def test_balance(self):
        self.run_through("balance: cost", balance="cost")

    def test_mixing(self):
        self.run_through("two sources, 3 : 1", sources={"web": 3, "code": 1})

    def test_two_jobs(self):
        self.run_through(f"two jobs, one {LAG} steps behind", follower=True)

    def test_commits_stop(self):
        """Retained commits give way first, then the producers stop; with the next commit all goes on. (A wait that is told before they have gone
        names a step below the last commit.)"""
        with harness.Daemon(feeds=[FEED], extra=DAEMON) as packd:
            producers = self.producers(packd, {"": 1})
            ender = self.end_when_pushed(packd, producers)
            trainer = Trainer(packd.address)
            measures = Measures(packd)
            messages, stops = trainer.fetch.next_message, []
            commits = 4

            def noting():
                message = messages()
                waiting = message.waiting if message.HasField("waiting") else None
                if waiting and waiting.reason == pb.WAIT_COMMIT and waiting.stall.first_step > trainer.committed:
                    stops.append(self.check_stopped(packd, trainer, producers[0]))
                    trainer.commit()
                return message

            trainer.fetch.next_message = noting
            while trainer.next():
                if trainer.committed < 0 or len(stops) > 0 or trainer.step < commits * EVERY:
                    trainer.on_schedule()
                measures.at(trainer.samples)
            ender.join(60)
            self.assertIsNone(producers[0].error)
            self.assertEqual(trainer.samples, SAMPLES)
            self.assertGreaterEqual(len(stops), 1)
            self.assertLess(stops[0], SAMPLES)
            trainer.fetch.close()
            measures.check(self, "commits stop once")

    def check_stopped(self, packd, trainer, producer):
        """The samples pushed by then."""
        harness.wait_for("the producer is told", lambda: pb.LOG_STALLED in producer.whys)
        metrics = packd.metrics()
        job = packd.status()["feeds"][0]["jobs"][0]
        self.assertGreaterEqual(metrics['packd_retained_commits_given_up_total{feed="default"}'], 2)
        self.assertGreater(int(job["lowest_step"]), trainer.committed - EVERY)
        self.assertLessEqual(int(job["lowest_step"]), trainer.committed + 1)
        return metrics['packd_ingest_samples_total{feed="default"}']


if __name__ == "__main__":
    unittest.main()
