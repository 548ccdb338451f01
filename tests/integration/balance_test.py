"""balance: cost over the wire: the same steps for every world, each pack once, the same bytes after kill -9, and ranks with more equal work."""

import random
import unittest

import grpc

import harness
import peer
from peer import pb

FEED = {"name": "default", "seq_len": 256, "window": 64, "seed": 5, "cost": {"alpha": 0, "beta": 1}}
BALANCED = {**FEED, "balance": "cost"}
P = 8


def random_samples(rng, count):
    return [[rng.randrange(1, 1000)] * min(256, 1 + int(rng.lognormvariate(3, 1))) for _ in range(count)]


class Source:
    """One stream that goes on where it stopped, also after a restart."""

    def __init__(self, samples):
        self.samples = samples
        self.sent = 0

    def push(self, address, count, end=False):
        push = peer.Push(address, stream="s")
        push.welcome()
        upto = min(self.sent + count, len(self.samples))
        for at in range(self.sent, upto, 50):
            push.block(self.samples[at:min(at + 50, upto)])
        push.wait_durable(upto)
        self.sent = upto
        if end:
            push.end_stream()
        push.close()
        if end:
            peer.end_feed(address)


def fetch(address, dp_size, rows, accum, job, token, steps=None):
    """{(step, micro, dp_rank): Batch} of all ranks, one after the other; `steps`: of the first ones only."""
    batches = {}
    for rank in range(dp_size):
        opened = peer.open_job(address, job=job, dp_size=dp_size, rows=rows, accum=accum, dp_rank=rank, world_token=token)
        call = peer.Fetch(address, opened, job=job, dp_rank=rank, first_step=0)
        batch = call.next() if steps != 0 else None
        while batch is not None:
            header = batch.header
            batches[header.step, header.micro, header.dp_rank] = batch
            done = steps is not None and (header.step, header.micro) == (steps - 1, accum - 1)
            batch = None if done else call.next()
        call.close()
    return batches


def entries(batches):
    """{step: [pack of entry 0, 1, ...]}"""
    steps = {}
    for key in sorted(batches):
        steps.setdefault(key[0], []).extend(batches[key].header.packs)
    return steps


def costs(batches):
    """{(step, micro, dp_rank): sum of squared real lengths}"""
    return {key: int((batch["seq_lens"].astype("int64") ** 2).sum()) for key, batch in batches.items()}


def imbalance(batches, last_step):
    """Mean over whole steps' micro-steps of the slowest rank over the mean rank."""
    groups = {}
    for (step, micro, _), cost in costs(batches).items():
        if step < last_step:
            groups.setdefault((step, micro), []).append(cost)
    return sum(max(group) * len(group) / sum(group) for group in groups.values()) / len(groups)


class BalanceTest(unittest.TestCase):
    def setUp(self):
        self.seed = random.randrange(1 << 30)
        print("seed", self.seed)
        self.rng = random.Random(self.seed)

    def test_steps_do_not_know_the_world(self):
        samples = random_samples(self.rng, 4000)
        with harness.Daemon(feeds=[BALANCED]) as packd:
            Source(samples).push(packd.address, len(samples), end=True)
            first = fetch(packd.address, 2, 2, 2, "a", "w")
            second = fetch(packd.address, 4, 1, 2, "b", "w")
            third = fetch(packd.address, 1, 8, 1, "c", "w")
            steps = entries(first)
            self.assertEqual(steps, entries(second))
            self.assertEqual(steps, entries(third))
            packs = sorted(pack for step in steps.values() for pack in step if pack >= 0)
            self.assertEqual(packs, list(range(len(packs))), "each pack is in one step")
            self.assertEqual({len(step) for step in steps.values()}, {P})
            served = [key for batch in first.values() for key, _ in batch.samples()]
            self.assertEqual(sorted(seq for _, seq, _ in served), list(range(len(samples))))
            self.assertNotEqual(packs, [pack for step in sorted(steps) for pack in steps[step] if pack >= 0])
            self.check_blocks(steps)
            self.check_sorted(first, steps)
            self.check_explain(packd, steps)

    def check_blocks(self, steps):
        """Steps 0 | 1 | 2 3 | 4 .. 7 | 8 .. 15 | 16 .. 31 | ... draw from their own packs."""
        last = max(steps)
        first, size = 0, 1
        while first <= last:
            packs = [p for s in range(first, min(first + size, last + 1)) for p in steps[s] if p >= 0]
            self.assertEqual(sorted(packs), list(range(first * P, first * P + len(packs))))
            first, size = first + size, min(max(first + size, 1), 16)

    def check_sorted(self, batches, steps):
        """Within a step packs rise in cost, and the ranges of a block's whole steps do not overlap."""
        cost = {}
        for batch in batches.values():
            lens, width = batch["seq_lens"].astype("int64"), batch["tokens"].shape[1]
            rows = batch["cu_seqlens"][:-1] // width
            for row, pack in enumerate(batch.header.packs):
                cost[pack] = int((lens[rows == row] ** 2).sum())
        for step, packs in steps.items():
            real = [cost[p] for p in packs if p >= 0]
            self.assertEqual(real, sorted(real), f"step {step}")
        block = [(cost[steps[s][0]], cost[steps[s][-1]]) for s in range(16, 32)]
        for (_, high), (low, _) in zip(sorted(block), sorted(block)[1:]):
            self.assertLessEqual(high, low)
        self.assertNotEqual(block, sorted(block), "the runs are permuted")

    def check_explain(self, packd, steps):
        for step in (0, 3, 20, max(steps)):
            answer = peer.admin(packd.address, "Explain", pb.ExplainRequest(feed="default", job="a", step=step))
            self.assertEqual([p.pack for p in answer.packs], steps[step])
        answer = peer.admin(packd.address, "Explain", pb.ExplainRequest(feed="default", job="a", step=20))
        self.assertEqual((answer.balance_block, answer.balance_steps), (5, 16))

    def test_the_same_bytes_after_kill_and_growth(self):
        """What was served while the feed was short is served again, by a daemon that was killed, once it has grown."""
        source = Source(random_samples(self.rng, 4000))
        with harness.Daemon(feeds=[BALANCED]) as packd:
            source.push(packd.address, 1500)
            early = fetch(packd.address, 2, 2, 2, "a", "one", steps=8)
            packd.kill()
            packd.start()
            source.push(packd.address, 1000)
            packd.kill()
            packd.start()
            source.push(packd.address, len(source.samples), end=True)
            whole = fetch(packd.address, 2, 2, 2, "a", "two")
            packd.kill()
            packd.start()
            again = fetch(packd.address, 2, 2, 2, "a", "three")
            self.assertEqual(len(early), 8 * 4)
            for key, batch in early.items():
                self.assertEqual((batch.header_bytes, batch.payload), (whole[key].header_bytes, whole[key].payload), key)
            self.assertEqual(set(whole), set(again))
            for key, batch in whole.items():
                self.assertEqual((batch.header_bytes, batch.payload), (again[key].header_bytes, again[key].payload), key)

    def test_ranks_have_more_equal_work(self):
        samples = random_samples(self.rng, 6000)
        found = {}
        for balance in ("off", "cost"):
            with harness.Daemon(feeds=[{**FEED, "balance": balance}]) as packd:
                Source(samples).push(packd.address, len(samples), end=True)
                batches = fetch(packd.address, 8, 1, 1, "a", "w")
                found[balance] = imbalance(batches, max(step for step, _, _ in batches))
        print(found)
        self.assertLess(found["cost"] - 1, (found["off"] - 1) / 3)

    def test_a_step_waits_for_its_block(self):
        """Steps 2 and 3 come together: with packs for two and a half steps the third is not there, and says what is missing."""
        source = Source([[1] * 256 for _ in range(400)])
        with harness.Daemon(feeds=[{**BALANCED, "window": 1}]) as packd:
            source.push(packd.address, 3 * P)
            batches = fetch(packd.address, 1, 8, 1, "a", "w", steps=2)
            self.assertEqual(sorted(batches), [(0, 0, 0), (1, 0, 0)])
            answer = peer.admin(packd.address, "Explain", pb.ExplainRequest(feed="default", job="a", step=2))
            self.assertEqual(answer.state, pb.STEP_NOT_PLANNED)
            self.assertEqual(answer.waiting.packs_missing, P)
            source.push(packd.address, P)
            self.assertEqual(len(fetch(packd.address, 1, 8, 1, "a", "w", steps=4)), 4)

    def test_far_behind_plan_ahead_a_block_is_planned(self):
        """plan_ahead of next to nothing still reaches the end of each block: nothing hangs."""
        source = Source([[1] * 256 for _ in range(64 * P)])
        with harness.Daemon(feeds=[{**BALANCED, "window": 1, "plan_ahead": "1KiB"}]) as packd:
            source.push(packd.address, len(source.samples), end=True)
            self.assertEqual(len(fetch(packd.address, 1, 8, 1, "a", "w")), 64)

    def test_steps_too_large_to_sort_are_refused(self):
        with harness.Daemon(feeds=[{**BALANCED, "seq_len": 16}]) as packd:
            with self.assertRaises(grpc.RpcError) as raised:
                peer.open_job(packd.address, job="a", dp_size=16385)
            self.assertEqual(peer.error_detail(raised.exception).reason, "STEP_TOO_LARGE")
            peer.open_job(packd.address, job="a", dp_size=16384)

    def test_the_switch_is_fixed(self):
        samples = random_samples(self.rng, 300)
        with harness.Daemon(feeds=[BALANCED]) as packd:
            Source(samples).push(packd.address, len(samples), end=True)
            packd.stop()
            packd.config["feeds"][0] = {**FEED, "balance": "off"}
            with self.assertRaisesRegex(AssertionError, "has data: balance is"):
                packd.start()
            packd.config["feeds"][0] = BALANCED
            packd.start()


if __name__ == "__main__":
    unittest.main()
