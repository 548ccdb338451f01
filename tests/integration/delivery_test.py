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

    def test_status_of_a_job_at_work(self):
        """What ranks have and wait for, what is ready; a stream is connected as long as its call is there."""
        with harness.Daemon(feeds=[FEED]) as packd:
            def status():
                feed = peer.admin(packd.address, "Status", pb.StatusRequest(streams=True)).feeds[0]
                return feed, feed.jobs[0] if feed.jobs else None
            push = peer.Push(packd.address, stream="a", producer="host-7")
            push.welcome()
            push.block([[1] * 128] * 80)
            push.wait_durable(80)
            feed, _ = status()
            self.assertTrue(feed.streams[0].connected)
            self.assertEqual(feed.streams[0].producer, "host-7")
            self.assertGreater(feed.streams[0].last_unix_ms, 1_600_000_000_000)
            self.assertGreater(feed.streams[0].held_bytes, 80 * 128 * 4)
            opened = peer.open_job(packd.address, dp_size=2, dp_rank=1, world_token="w", client="trainer-1")
            self.assertTrue(opened.created)
            again = peer.open_job(packd.address, dp_size=2, dp_rank=0, world_token="w")
            self.assertFalse(again.created)
            self.assertEqual(again.incarnation, opened.incarnation)
            self.assertIn(f"incarnation={opened.incarnation} ", packd.log())
            fetch = peer.Fetch(packd.address, opened, dp_rank=1)
            planned = status()[1].planned_step
            self.assertEqual(planned, (80 - 63) // 2 - 1)  # full packs of one sample, the window keeps 63
            batches = [fetch.next() for _ in range(planned + 1)]
            self.assertEqual(fetch.next_message().waiting.reason, pb.WAIT_SAMPLES)
            harness.wait_for("rank 1 has everything", lambda: status()[1].ranks[1].delivered_step == planned)
            _, job = status()
            self.assertEqual(job.batches_served, len(batches))
            self.assertEqual(job.bytes_served, sum(b.header.payload_bytes for b in batches))
            self.assertEqual(job.served.real, len(batches) * 128)
            self.assertEqual((job.delivered_step, job.lag_steps, job.end_step), (-1, planned + 1, -1))
            self.assertGreaterEqual(job.ready_batches, 1)
            self.assertEqual([(r.dp_rank, r.calls, r.delivered_step, r.client) for r in job.ranks],
                             [(0, 0, -1, ""), (1, 1, planned, "trainer-1")])
            self.assertFalse(job.ranks[0].HasField("waiting"))
            self.assertEqual(job.ranks[1].waiting.reason, pb.WAIT_SAMPLES)
            self.assertEqual(job.ranks[1].waiting.step, planned + 1)
            fetch.close()
            push.close()
            harness.wait_for("the calls are gone", lambda: not status()[0].streams[0].connected
                             and status()[1].ranks[1].calls == 0)

    def test_rejected_samples_count_apart(self):
        with harness.Daemon(feeds=[{**FEED, "vocab_size": 100}]) as packd:
            push = peer.Push(packd.address, stream="a")
            push.welcome()
            push.block([[1] * 10, [], [500] * 20, [2] * 30, [600] * 5])
            push.wait_durable(5)
            push.close()
            ingest = peer.admin(packd.address, "Status", pb.StatusRequest()).feeds[0].ingest
            self.assertEqual((ingest.samples, ingest.tokens, ingest.bytes, ingest.blocks), (2, 40, 160, 1))
            self.assertEqual({r.reason: r.count for r in ingest.rejects}, {"EMPTY_SAMPLE": 1, "TOKEN_OUT_OF_VOCAB": 2})
            self.assertEqual(packd.metrics()['packd_ingest_bytes_total{feed="default"}'], 160)

    def test_a_reader_at_the_horizon_is_told_so(self):
        """Nothing more is planned until a trainer has received more, whether the feed is open or has ended."""
        with harness.Daemon(feeds=[{**FEED, "window": 8, "plan_ahead": "25600B"}]) as packd:  # 10 packs
            push_stream(packd.address, "a", [[1] * 128] * 40)
            reader = peer.Fetch(packd.address, peer.open_job(packd.address, job="look", kind=pb.JOB_READER), job="look")
            for _ in range(10):
                self.assertIsNotNone(reader.next())
            waiting = reader.next_message().waiting
            self.assertEqual((waiting.reason, waiting.step, waiting.packs_missing), (pb.WAIT_HORIZON, 10, 1))
            self.assertGreater(waiting.since_unix_ms, 1_600_000_000_000)
            peer.end_feed(packd.address)
            again = peer.Fetch(packd.address, peer.open_job(packd.address, job="look", kind=pb.JOB_READER), job="look",
                               first_step=10)
            self.assertEqual(again.next_message().waiting.reason, pb.WAIT_HORIZON)
            again.close()
            # A trainer's deliveries move it.
            self.assertEqual([len(batches) for batches in self.serve(packd, 1)], [40])
            self.assertEqual(len(reader.all()), 30)

    def test_wait_for_a_lane_and_for_a_stream(self):
        sources = {"web": {"weight": 1}, "code": {"weight": 1}}
        with harness.Daemon(feeds=[{**FEED, "sources": sources},
                                   {**FEED, "name": "turns", "merge": "ordered", "streams": ["x", "y"]}]) as packd:
            def first_wait(feed):
                call = peer.Fetch(packd.address, peer.open_job(packd.address, feed=feed), feed=feed)
                waiting = call.next_message().waiting
                call.close()
                return waiting
            waiting = first_wait("default")
            self.assertEqual((waiting.reason, list(waiting.streams)), (pb.WAIT_STREAM, []))
            web = peer.Push(packd.address, stream="w", source="web")
            web.welcome()
            web.block([[1] * 100] * 100)
            web.wait_durable(100)
            waiting = first_wait("default")
            self.assertEqual((waiting.reason, list(waiting.sources)), (pb.WAIT_LANE, ["code"]))
            self.assertEqual(peer.admin(packd.address, "Status", pb.StatusRequest()).feeds[0].waiting.reason, pb.WAIT_LANE)
            web.close()
            x = peer.Push(packd.address, feed="turns", stream="x")
            x.welcome()
            x.block([[1] * 100] * 100)
            x.wait_durable(100)
            waiting = first_wait("turns")
            self.assertEqual((waiting.reason, list(waiting.streams)), (pb.WAIT_STREAM, ["y"]))
            y = peer.Push(packd.address, feed="turns", stream="y")
            y.welcome()
            y.block([[1] * 100])
            y.wait_durable(1)
            waiting = first_wait("turns")
            self.assertEqual((waiting.reason, list(waiting.streams), waiting.streams_total), (pb.WAIT_LANE, ["y"], 1))
            x.close()
            y.close()

    def test_the_reason_of_a_wait_may_change(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            call = peer.Fetch(packd.address, peer.open_job(packd.address))
            self.assertEqual(call.next_message().waiting.reason, pb.WAIT_STREAM)
            push = peer.Push(packd.address, stream="a")
            push.welcome()
            while (waiting := call.next_message().waiting).reason == pb.WAIT_STREAM:
                pass
            self.assertEqual((waiting.reason, list(waiting.streams)), (pb.WAIT_SAMPLES, ["a"]))
            call.close()
            push.close()

    def test_from_start_although_steps_are_committed(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            push_stream(packd.address, "a", [[1] * 128] * 20)
            peer.end_feed(packd.address)
            opened = peer.open_job(packd.address, world_token="w1")
            first = peer.Fetch(packd.address, opened).all()
            with peer.channel(packd.address) as channel:
                peer.rpc.FeedStub(channel).Commit(pb.CommitRequest(job="train", generation=opened.generation, step=7,
                                                                   fetched=19, log_id=opened.log_id))
            behind = peer.open_job(packd.address, world_token="w2")
            self.assertEqual((behind.first_step, behind.committed_step, behind.lowest_step), (8, 7, 0))
            anew = peer.open_job(packd.address, world_token="w3", from_start=True)
            self.assertEqual((anew.first_step, anew.committed_step), (0, 7))
            self.assertEqual(peer.open_job(packd.address, world_token="w3").first_step, 0, "the world's other ranks")
            self.assertEqual([b.payload for b in peer.Fetch(packd.address, anew).all()], [b.payload for b in first])

    def test_fetch_refuses_what_is_not_there(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            opened = peer.open_job(packd.address, dp_size=2, world_token="w")
            for change, code, reason in (({"job": "nobody"}, peer.grpc.StatusCode.NOT_FOUND, "UNKNOWN_JOB"),
                                         ({"feed": "nowhere"}, peer.grpc.StatusCode.NOT_FOUND, "UNKNOWN_FEED"),
                                         ({"dp_rank": 2}, peer.grpc.StatusCode.FAILED_PRECONDITION, "DP_RANK"),
                                         ({"first_micro": 1}, peer.grpc.StatusCode.FAILED_PRECONDITION, "MICRO")):
                call = peer.Fetch(packd.address, opened, **change)
                with self.assertRaises(peer.grpc.RpcError) as caught:
                    call.next()
                self.assertEqual(caught.exception.code(), code)
                detail = peer.error_detail(caught.exception)
                self.assertEqual((detail.reason, detail.job), (reason, change.get("job", "train")))
            stale = peer.Fetch(packd.address, opened)
            peer.open_job(packd.address, dp_size=2, world_token="w2")
            with self.assertRaises(peer.grpc.RpcError) as caught:
                stale.all()
            self.assertEqual(peer.error_detail(caught.exception).reason, "FENCED")

    def test_a_job_in_use_is_deleted_only_with_force(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            call = peer.Fetch(packd.address, peer.open_job(packd.address))
            self.assertEqual(call.next_message().waiting.step, 0)
            with self.assertRaises(peer.grpc.RpcError) as caught:
                peer.admin(packd.address, "DeleteJob", pb.DeleteJobRequest(job="train"))
            self.assertEqual(caught.exception.code(), peer.grpc.StatusCode.FAILED_PRECONDITION)
            self.assertEqual(peer.error_detail(caught.exception).reason, "IN_USE")
            peer.admin(packd.address, "DeleteJob", pb.DeleteJobRequest(job="train", force=True))
            with self.assertRaises(peer.grpc.RpcError) as caught:
                call.next()
            self.assertEqual(caught.exception.code(), peer.grpc.StatusCode.NOT_FOUND)
            call.close()
            # Nobody reads it any more: no force is needed.
            peer.open_job(packd.address)
            peer.admin(packd.address, "DeleteJob", pb.DeleteJobRequest(job="train"))

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
