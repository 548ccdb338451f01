"""One job, another world every few steps: 48 packs a step as 8 x 2 x 3, then 3 x 4 x 4, then 16 x 1 x 3 (ranks x rows x accum). Every step has the
samples and the totals it has for a reader that nobody disturbed, with and without balance, through restarts; and a world that was stopped and wakes
up late changes nothing."""

import json
import os
import random
import signal
import subprocess
import unittest

import grpc

import harness
import peer
from peer import pb

P = 48
WORLDS = [(8, 2, 3), (3, 4, 4), (16, 1, 3)]
STEPS_EACH = 4
FEED = {"name": "default", "seq_len": 128, "window": 64, "seed": 3, "over_length": "split", "jobs": [{"name": "train", "retain": {"bytes": "1GiB"}}]}


def push_samples(address, rng, count, stream="s", end=True):
    push = peer.Push(address, stream=stream)
    push.welcome()
    for _ in range(count // 50):
        push.block([[rng.randrange(1, 1000) for _ in range(rng.randrange(1, 150))] for _ in range(50)])
    push.wait_durable(push.next_seq)
    if end:
        push.end_stream()
    push.close()
    if end:
        peer.end_feed(address)


def commit(address, opened, step, job="train"):
    with peer.channel(address) as channel:
        return peer.rpc.FeedStub(channel).Commit(
            pb.CommitRequest(feed="default", job=job, log_id=opened.log_id, generation=opened.generation, step=step, fetched=step), timeout=60)


class Steps:
    """What was received of each step: its samples, the sum of its batches' totals, and the step totals all its batches state."""

    def __init__(self):
        self.samples, self.loss, self.real, self.totals, self.rows, self.packs = {}, {}, {}, {}, {}, {}

    def add(self, case, batch):
        step, header = batch.header.step, batch.header
        self.samples.setdefault(step, []).extend((key, tuple(tokens)) for key, tokens in batch.samples())
        self.real[step] = self.real.get(step, 0) + header.batch.real_tokens
        self.loss[step] = self.loss.get(step, 0) + int((batch["loss_weight"] > 0).sum())
        self.rows[step] = self.rows.get(step, 0) + header.rows
        first = (header.micro * header.dp_size + header.dp_rank) * header.rows
        self.packs.setdefault(step, []).extend((first + row, pack) for row, pack in enumerate(header.packs) if pack >= 0)
        stated = header.step_totals.SerializeToString()
        case.assertEqual(self.totals.setdefault(step, stated), stated)

    def sets(self):
        return {step: sorted(samples) for step, samples in self.samples.items()}


def world(case, address, shape, token, into, job="train", steps=None, **more):
    """All ranks of one world from where it begins; with `steps` so many of them, else to the end of the feed. The next step."""
    dp_size, rows, accum = shape
    first = None
    for rank in range(dp_size):
        opened = peer.open_job(address, job=job, dp_size=dp_size, rows=rows, accum=accum, dp_rank=rank, world_token=token, **more)
        case.assertEqual(opened.first_step, opened.first_step if first is None else first)
        first = opened.first_step
        stop = {} if steps is None else {"last_step": first + steps - 1}
        fetch = peer.Fetch(address, opened, job=job, dp_rank=rank, **stop)
        for batch in fetch.all():
            into.add(case, batch)
        fetch.close()
    return opened, max(into.samples) + 1


class ElasticTest(unittest.TestCase):
    def setUp(self):
        self.seed = random.randrange(1 << 30)
        print("seed", self.seed)
        self.rng = random.Random(self.seed)

    def run_elastic(self, feed):
        with harness.Daemon(feeds=[feed]) as packd:
            push_samples(packd.address, self.rng, 1500, "a", end=False)
            push_samples(packd.address, self.rng, 1500, "b")
            got, plain = Steps(), Steps()
            world(self, packd.address, (1, P, 1), "r", plain, job="look", kind=pb.JOB_READER)
            last = max(plain.samples)
            self.assertGreater(last, len(WORLDS) * STEPS_EACH)
            for i, shape in enumerate(WORLDS):
                final = i == len(WORLDS) - 1
                opened, done = world(self, packd.address, shape, f"w{i}", got, steps=None if final else STEPS_EACH)
                commit(packd.address, opened, done - 1)
                packd.kill()
                packd.start()
            self.assertEqual(done, last + 1)
            self.assertEqual(got.sets(), plain.sets())
            self.assertEqual(got.totals, plain.totals)
            self.assertEqual((got.real, got.loss), (plain.real, plain.loss))
            self.assertEqual(set(got.rows.values()), {P})
            self.check_rewind(packd, plain)

    def check_rewind(self, packd, plain):
        """Back to a step in the middle, in another shape still: the same steps again; a shape that is not P is refused with what would fit."""
        again = Steps()
        world(self, packd.address, (6, 8, 1), "back", again, resume_step=4)
        self.assertEqual(again.sets(), {step: samples for step, samples in plain.sets().items() if step > 4})
        with self.assertRaises(grpc.RpcError) as caught:
            peer.open_job(packd.address, dp_size=5, rows=3, accum=1, world_token="odd")
        self.assertEqual(caught.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)

    def run_regroup(self, feed):
        """48 packs a step, then 15 from the last commit on: every sample once, packs in order; the steps before are gone, and said to be."""
        with harness.Daemon(feeds=[feed]) as packd:
            push_samples(packd.address, self.rng, 1500, "a", end=False)
            push_samples(packd.address, self.rng, 1500, "b")
            plain, before, after = Steps(), Steps(), Steps()
            world(self, packd.address, (1, P, 1), "r", plain, job="look", kind=pb.JOB_READER)
            opened, done = world(self, packd.address, WORLDS[0], "w0", before, steps=4)
            shape = {"dp_size": 5, "rows": 1, "accum": 3}
            self.refused("REGROUP", packd, world_token="early", regroup=True, resume_step=1, **shape)
            commit(packd.address, opened, done - 1)
            self.refused("REGROUP", packd, world_token="plain", **shape)
            self.refused("REGROUP", packd, world_token="back", regroup=True, resume_step=1, **shape)
            for again in range(2):
                into = after if again == 0 else Steps()
                opened, _ = world(self, packd.address, (5, 1, 3), f"regroup{again}", into, regroup=True)
                self.assertEqual((opened.first_step, opened.spec.step_packs, opened.lowest_step), (done, 15, done))
                packd.kill()
                packd.start()
            self.assertEqual((into.sets(), into.totals), (after.sets(), after.totals))
            self.assertEqual(set(after.rows.values()), {15})
            self.assertEqual(min(after.samples), done)
            every = sorted(sum(plain.samples.values(), []))
            self.assertEqual(sorted(sum(before.samples.values(), []) + sum(after.samples.values(), [])), every)
            self.assertEqual(sum(before.real.values()) + sum(after.real.values()), sum(plain.real.values()))
            if "balance" not in feed:
                packs = [pack for step in sorted(after.packs) for _, pack in sorted(after.packs[step])]
                self.assertEqual(packs, list(range(done * P, done * P + len(packs))))
            detail = self.refused("STEP_TRIMMED", packd, world_token="old", resume_step=1, **shape)
            self.assertEqual(detail.lowest_step, done)
            with self.assertRaises(grpc.RpcError) as caught:
                peer.Fetch(packd.address, opened, first_step=done - 1).next()
            self.assertEqual(peer.error_detail(caught.exception).reason, "STEP_TRIMMED")

    def refused(self, reason, packd, **request):
        with self.assertRaises(grpc.RpcError) as caught:
            peer.open_job(packd.address, **request)
        detail = peer.error_detail(caught.exception)
        self.assertEqual(detail.reason, reason)
        return detail

    def test_regroup(self):
        self.run_regroup(FEED)

    def test_regroup_balanced(self):
        self.run_regroup({**FEED, "balance": "cost"})

    def test_elastic(self):
        self.run_elastic(FEED)

    def test_elastic_balanced(self):
        self.run_elastic({**FEED, "balance": "cost"})

    def test_a_world_that_wakes_up_late(self):
        self.wake_up_late(2)

    def test_a_world_that_wakes_up_after_a_regroup(self):
        self.wake_up_late(3)

    def wake_up_late(self, rows):
        """A world of one rank, 4 packs a step, is stopped; one of two ranks takes over with `rows` each."""
        living_shape = {"dp_size": 2, "rows": rows, "world_token": "new", "regroup": True}
        with harness.Daemon(feeds=[FEED]) as packd:
            push_samples(packd.address, self.rng, 600, "a", end=False)
            old = subprocess.Popen([harness.PACKCTL, "--server", packd.address, "--json", "fetch", "--job", "train", "--dp-size", "1", "--rank", "0",
                                    "--rows", "4", "--world", "old", "--commit-every", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(6):
                self.assertEqual(json.loads(old.stdout.readline())["type"], "batch")
            os.kill(old.pid, signal.SIGSTOP)
            before = peer.open_job(packd.address, dp_size=1, rows=4, segment_multiple=1, world_token="old")
            living = peer.open_job(packd.address, **living_shape)
            self.assertEqual(living.generation, before.generation + 1)
            seen = self.take(packd, living, living_shape, 10)
            reply = commit(packd.address, living, living.first_step + 9)
            os.kill(old.pid, signal.SIGCONT)
            push_samples(packd.address, self.rng, 600, "b", end=False)
            _, error = old.communicate(timeout=60)
            self.assertNotEqual(old.returncode, 0)
            self.assertRegex(error, "superseded|FENCED|STALE_WORLD")
            for call in (lambda: commit(packd.address, before, living.first_step + 50), lambda: peer.Fetch(packd.address, before).next(),
                         lambda: peer.open_job(packd.address, dp_size=1, rows=4, world_token="old")):
                with self.assertRaises(grpc.RpcError) as caught:
                    call()
                self.assertEqual(caught.exception.code(), grpc.StatusCode.ABORTED)
            now = peer.open_job(packd.address, **living_shape)
            self.assertEqual((now.generation, now.committed_step), (living.generation, reply.committed_step))
            self.assertEqual(self.take(packd, living, living_shape, 10), seen)

    def take(self, packd, opened, shape, steps):
        """Bytes of the world's next `steps` steps."""
        out = {}
        for rank in range(2):
            peer.open_job(packd.address, dp_rank=rank, **shape)
            fetch = peer.Fetch(packd.address, opened, dp_rank=rank, last_step=opened.first_step + steps - 1)
            for batch in fetch.all():
                out[batch.header.step, rank] = batch.header_bytes, batch.payload
            fetch.close()
        self.assertEqual(len(out), steps * 2)
        return out


if __name__ == "__main__":
    unittest.main()
