"""Delivery: two producers and four ranks, late ranks, peers that read again, and the end of a feed that is the same for everybody."""

import random
import threading
import unittest

import harness
import peer
from peer import pb

FEED = {"name": "default", "seq_len": 128, "window": 64}


def push_stream(address, name, samples, block=40):
    push = peer.Push(address, stream=name)
    push.welcome()
    for at in range(0, len(samples), block):
        push.block(samples[at:at + block])
    push.wait_durable(len(samples))
    push.end_stream()
    push.close()


def random_samples(rng, count, longest):
    return [[rng.randrange(1, 1000)] * rng.randint(1, longest) for _ in range(count)]


def in_threads(*calls):
    results = [None] * len(calls)
    errors = []

    def run(i, call):
        try:
            results[i] = call()
        except BaseException as error:  # noqa: B036 - reported below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i, c)) for i, c in enumerate(calls)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(harness.DEADLINE_S * 2)
        assert not t.is_alive(), "a thread did not end"
    if errors:
        raise errors[0]
    return results


class DeliveryTest(unittest.TestCase):
    def serve(self, packd, ranks, rows=1, accum=1, job="train"):
        """Fetches everything as `ranks` ranks at once; [[batch]] by rank."""
        def fetch(rank):
            opened = peer.open_job(packd.address, job=job, dp_size=ranks, rows=rows, accum=accum, dp_rank=rank, world_token="w1")
            call = peer.Fetch(packd.address, opened, job=job, dp_rank=rank)
            batches = call.all()
            self.assertIsNotNone(call.end)
            return batches, call.end.last_step
        results = in_threads(*(lambda r=r: fetch(r) for r in range(ranks)))
        self.assertEqual(len({end for _, end in results}), 1, "all ranks end at the same step")
        return [batches for batches, _ in results]

    def test_two_producers_four_ranks(self):
        seed = random.randrange(1 << 30)
        print("seed", seed)
        rng = random.Random(seed)
        streams = {name: random_samples(rng, 300, 128) for name in ("a", "b")}
        with harness.Daemon(feeds=[FEED]) as packd:
            def produce():
                in_threads(*(lambda n=n: push_stream(packd.address, n, streams[n]) for n in streams))
                peer.end_feed(packd.address)
            _, ranks = in_threads(produce, lambda: self.serve(packd, 4, rows=2, accum=2))
            got = {}
            packs = set()
            for batches in ranks:
                self.assertEqual([(b.header.step, b.header.micro) for b in batches],
                                 [(s, m) for s in range(len(batches) // 2) for m in range(2)])
                for batch in batches:
                    for key, tokens in batch.samples():
                        self.assertNotIn(key, got)
                        got[key] = tokens
                    real = [p for p in batch.header.packs if p >= 0]
                    self.assertEqual(packs & set(real), set())
                    packs |= set(real)
            self.assertEqual(got, {(n, i, 0): s for n in streams for i, s in enumerate(streams[n])})
            self.assertEqual(packs, set(range(len(packs))))
            # The step's totals, as each batch states them, are the sums over its batches.
            for step in range(len(ranks[0]) // 2):
                batches = [b for r in ranks for b in r if b.header.step == step]
                self.assertEqual(len({b.header.step_totals.SerializeToString(deterministic=True) for b in batches}), 1)
                totals = batches[0].header.step_totals
                for field in ("real_tokens", "tail_padding", "gap", "row_padding", "samples", "segments"):
                    self.assertEqual(getattr(totals, field), sum(getattr(b.header.batch, field) for b in batches), field)
                self.assertEqual(totals.loss[0].count, sum(b.header.batch.loss[0].count for b in batches))

    def test_late_rank_and_rereading_peer_get_the_same_bytes(self):
        rng = random.Random(7)
        samples = random_samples(rng, 400, 128)
        with harness.Daemon(feeds=[FEED]) as packd:
            push_stream(packd.address, "a", samples)
            peer.end_feed(packd.address)
            opened = peer.open_job(packd.address, dp_size=2, dp_rank=0, world_token="w")
            first = peer.Fetch(packd.address, opened, dp_rank=0).all()
            # Rank 1 starts when rank 0 has long finished; a tensor-parallel peer of rank 0 reads its batches once more.
            late_open = peer.open_job(packd.address, dp_size=2, dp_rank=1, world_token="w")
            self.assertEqual(late_open.generation, opened.generation)
            late = peer.Fetch(packd.address, late_open, dp_rank=1).all()
            twin = peer.Fetch(packd.address, opened, dp_rank=0).all()
            self.assertEqual(len(first), len(late))
            self.assertEqual([(b.header_bytes, b.payload) for b in first], [(b.header_bytes, b.payload) for b in twin])
            keys = [k for b in first + late for k, _ in b.samples()]
            self.assertEqual(len(keys), len(set(keys)))
            self.assertEqual(len(keys), len(samples))
            # What is read again is not counted again.
            positions = sum(b.header.rows * b.header.width for b in first + late)
            counted = sum(v for k, v in packd.metrics().items() if k.startswith("packd_pack_tokens_total"))
            self.assertEqual(counted, positions)

    def test_last_step_pad_and_drop(self):
        samples = [[5] * 128 for _ in range(10)]  # 10 full packs, steps of 4
        for policy, steps in (("pad", 3), ("drop", 2)):
            with self.subTest(policy), harness.Daemon(feeds=[{**FEED, "last_step": policy}]) as packd:
                push_stream(packd.address, "a", samples)
                peer.end_feed(packd.address)
                ranks = self.serve(packd, 2, rows=2)
                self.assertEqual([len(r) for r in ranks], [steps, steps])
                rows = [p for r in ranks for b in r for p in b.header.packs]
                self.assertEqual(rows.count(-1), 2 if policy == "pad" else 0)
                if policy == "pad":
                    last = ranks[1][-1]
                    self.assertEqual(list(last.header.packs), [-1, -1])
                    self.assertEqual(last.header.n_real_segments, 0)
                    self.assertEqual(last.header.batch.row_padding, 2 * 128)
                    self.assertTrue((last["labels"] == -100).all() and (last["loss_weight"] == 0).all())

    def test_empty_feed_ends_for_everybody(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            peer.end_feed(packd.address)
            call = peer.Fetch(packd.address, peer.open_job(packd.address))
            self.assertEqual(call.all(), [])
            self.assertEqual(call.end.last_step, -1)

    def test_a_feed_ends_only_when_told(self):
        """A producer that ends before another has connected does not end the feed."""
        with harness.Daemon(feeds=[FEED]) as packd:
            push_stream(packd.address, "early", [[1] * 100] * 5)
            call = peer.Fetch(packd.address, peer.open_job(packd.address))
            waiting = call.next_message().waiting
            self.assertEqual(waiting.reason, pb.WAIT_ALL_STREAMS_ENDED_FEED_OPEN)
            self.assertGreater(waiting.since_unix_ms, 0)
            push_stream(packd.address, "late", [[2] * 100] * 5)
            peer.end_feed(packd.address)
            batches = call.all()
            self.assertEqual(sum(len(b.samples()) for b in batches), 10)
            self.assertIsNotNone(call.end)

    def test_a_feed_ends_with_its_declared_streams(self):
        with harness.Daemon(feeds=[{**FEED, "stream_count": 2}]) as packd:
            push_stream(packd.address, "one", [[1] * 100] * 5)
            call = peer.Fetch(packd.address, peer.open_job(packd.address))
            self.assertTrue(call.next_message().HasField("waiting"))
            push_stream(packd.address, "two", [[2] * 100] * 5)
            self.assertEqual(sum(len(b.samples()) for b in call.all()), 10)
            self.assertIsNotNone(call.end)

    def test_many_jobs_read_one_feed(self):
        samples = random_samples(random.Random(3), 200, 100)
        with harness.Daemon(feeds=[FEED]) as packd:
            push_stream(packd.address, "a", samples)
            peer.end_feed(packd.address)
            jobs = in_threads(*(lambda j=j: self.serve(packd, j, job=f"job{j}") for j in (1, 2, 3)))
            for ranks in jobs:
                keys = [k for r in ranks for b in r for k, _ in b.samples()]
                self.assertEqual(sorted(keys), [("a", i, 0) for i in range(len(samples))])

    def test_flush_packs_a_short_window(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            push = peer.Push(packd.address, stream="a")
            push.welcome()
            push.block([[1] * 100] * 3)
            push.wait_durable(3)
            call = peer.Fetch(packd.address, peer.open_job(packd.address))
            waiting = call.next_message().waiting
            self.assertEqual(waiting.reason, pb.WAIT_SAMPLES)
            self.assertEqual(list(waiting.streams), ["a"])
            packd.packctl("flush")
            self.assertEqual([len(call.next().samples()) for _ in range(3)], [1, 1, 1])
            call.close()
            push.close()


if __name__ == "__main__":
    unittest.main()
