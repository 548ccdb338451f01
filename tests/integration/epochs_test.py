"""Passes over the data: epochs, on_end: repeat, max_passes; and the two ways in which a step comes about without a full window."""

import collections
import unittest

import grpc

import harness
import peer
from peer import pb

FEED = {"name": "default", "seq_len": 64, "window": 8}
DAEMON = {"log": {"durability": "process"}, "memory": {"batches": "4MiB"}}


def push(packd, stream, count, length, **hello):
    call = peer.Push(packd.address, stream=stream, **hello)
    call.welcome()
    for first in range(0, count, 200):
        call.block([[1 + (i + j) % 90 for j in range(length)] for i in range(first, min(first + 200, count))])
    call.wait_durable(count)
    call.end_stream()
    call.close()


def rows(packd, job="train", **more):
    """[(stream, seq, epoch)] of the segments, in the order of steps, to the end of the feed."""
    opened = peer.open_job(packd.address, job=job, **more)
    out = []
    for batch in peer.Fetch(packd.address, opened, job=job).all():
        table, zeros = batch.header.samples, [0] * batch.header.n_real_segments  # an empty column is all 0
        out += [(table.streams[s], seq, epoch)
                for s, seq, epoch in zip(table.stream or zeros, table.seq or zeros, table.epoch or zeros, strict=True)]
    return out


class EpochsTest(unittest.TestCase):
    def test_epochs(self):
        """Each sample once a pass, passes one after the other; a kill in the middle changes nothing."""
        with harness.Daemon(feeds=[{**FEED, "epochs": 3, "stream_count": 1, "plan_ahead": "4KiB"}], extra=DAEMON) as packd:
            push(packd, "s", 500, 12)
            opened = peer.open_job(packd.address)
            first = peer.Fetch(packd.address, opened, last_step=80).all()
            self.assertEqual(max(e for b in first for e in b.header.samples.epoch or [0]), 0)
            packd.kill()
            packd.start()
            got = rows(packd, from_start=True)
            self.assertEqual(collections.Counter(got), {("s", seq, epoch): 1 for seq in range(500) for epoch in range(3)})
            # The window holds the end of one pass and the start of the next, no more.
            latest = {epoch: max(i for i, row in enumerate(got) if row[2] == epoch) for epoch in range(3)}
            earliest = {epoch: min(i for i, row in enumerate(got) if row[2] == epoch) for epoch in range(3)}
            self.assertLess(latest[0] - earliest[1], 100)
            self.assertGreater(earliest[2], latest[0])

    def test_repeat_one_source(self):
        """A short source is read again as long as the long one lasts, at most max_passes times."""
        sources = {"long": {"weight": 1}, "short": {"weight": 1, "on_end": "repeat", "max_passes": 4}}
        with harness.Daemon(feeds=[{**FEED, "sources": sources, "stream_count": 2}], extra=DAEMON) as packd:
            push(packd, "l", 600, 16, source="long")
            push(packd, "s", 50, 16, source="short")
            got = collections.Counter(rows(packd))
            self.assertEqual(got, {**{("l", i, 0): 1 for i in range(600)}, **{("s", i, e): 1 for i in range(50) for e in range(4)}})

    def test_memory_is_that_of_one_pass(self):
        """Passes cost log and time, not memory: the planner keeps a cursor, never a list of what has been read."""
        with harness.Daemon(feeds=[{**FEED, "epochs": 20, "stream_count": 1}], extra=DAEMON) as packd:
            push(packd, "s", 4000, 4)
            opened = peer.open_job(packd.address, rows=16, kind=pb.JOB_READER)
            fetch = peer.Fetch(packd.address, opened)
            seen, at = 0, []
            while (batch := fetch.next()) is not None:
                seen = max(seen, max(batch.header.samples.epoch or [0]))
                while len(at) <= seen:
                    at.append(packd.resident_bytes())
            self.assertEqual(seen, 19)
            self.assertLess(max(at[4:]) - at[3], 24 << 20, at)

    def test_max_wait_flushes(self):
        """A trainer that waits with samples there gets its step from a short window, once max_wait is over."""
        with harness.Daemon(feeds=[{**FEED, "window": 64, "max_wait": "100ms"}], extra=DAEMON) as packd:
            call = peer.Push(packd.address, stream="s")
            call.welcome()
            call.block([[7] * 20 for _ in range(9)])
            call.wait_durable(9)
            fetch = peer.Fetch(packd.address, peer.open_job(packd.address, rows=2))
            batch = fetch.next()
            self.assertEqual((batch.header.step, len(batch.header.packs)), (0, 2))
            self.assertNotIn(-1, batch.header.packs)
            self.assertTrue(any(w.reason == pb.WAIT_SAMPLES for w in fetch.waits))
            fetch.close()
            call.close()

    def test_fixed_segments(self):
        """The planner caps rows so that a batch always fits, and a spec that could not is refused when the job is opened."""
        feed = {**FEED, "fixed_segments": 12, "pad_segment": 16}
        with harness.Daemon(feeds=[feed], extra=DAEMON) as packd:
            push(packd, "s", 300, 2)
            peer.end_feed(packd.address)
            with self.assertRaises(grpc.RpcError) as caught:
                peer.open_job(packd.address, job="wide", rows=2)
            self.assertEqual(peer.error_detail(caught.exception).reason, "TOO_MANY_SEGMENTS")
            batches = peer.Fetch(packd.address, peer.open_job(packd.address)).all()
            self.assertEqual({b.header.n_segments for b in batches}, {12})
            self.assertEqual(sum(b.header.n_real_segments for b in batches), 300)


if __name__ == "__main__":
    unittest.main()
