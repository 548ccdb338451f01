"""How large a piece of a block may be: packd raises it with a call's credit, and libpackd follows."""

import json
import subprocess
import threading
import unittest

import numpy as np

import harness
import peer
from fake_server import Fake, PushPlan
from peer import pb

CREDIT_BYTES = 60000  # that the fake server grants ahead


def plan(*raises):
    """Pieces of 700 bytes; the Acks tell `raises` one after the other."""
    return PushPlan(credit=CREDIT_BYTES, grant=CREDIT_BYTES, step=CREDIT_BYTES // 2, samples=100, piece=700, raises=raises)


class ClientTest(unittest.TestCase):
    def pieces(self, plan):
        """The pieces that libpackd sends a server with this plan."""
        rows = [{"tokens": [i % 250] * 200} for i in range(1000)]
        with Fake() as fake:
            fake.push_plans = [plan]
            done = subprocess.run([harness.PACKCTL, "--server", fake.address, "push", "--stream", "s", "-"], text=True, capture_output=True,
                                  input="".join(json.dumps(row) + "\n" for row in rows), timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual([sample["tokens"] for sample in fake.streams["s"].samples], [row["tokens"] for row in rows])
            self.assertLessEqual(fake.most_used_over_credit, 0)
            self.assertEqual(len(fake.hellos), 1)
            return fake.pieces

    def test_an_ack_raises_it(self):
        pieces = self.pieces(plan(0, 5000))
        self.assertEqual((pieces[0], max(pieces)), (700, 5000))

    def test_no_ack_lowers_it(self):
        pieces = self.pieces(plan(5000, 300, 0))
        self.assertEqual(max(pieces[len(pieces) // 2:]), 5000)

    def test_less_and_nothing_change_nothing(self):
        for raises in ((0,), (300,), (700, 1, 0)):
            pieces = self.pieces(plan(*raises))
            self.assertEqual(max(pieces), 700)
            self.assertGreaterEqual(sum(n == 700 for n in pieces), len(pieces) // 2)

    def test_credit_bounds_it(self):
        pieces = self.pieces(PushPlan(credit=3000, grant=2000, step=1500, samples=100, piece=700, raises=[1 << 19]))
        self.assertGreater(max(pieces), 700)
        self.assertLessEqual(max(pieces), 3000)


class Following(peer.Push):
    """A Push whose pieces are as large as the Acks allow."""

    def __init__(self, address, **hello):
        super().__init__(address, **hello)
        self.told, self.sent_pieces = [], []

    def read(self):
        response = super().read()
        if response.HasField("ack"):
            self.told.append(response.ack.max_piece_bytes)
        return response

    def block(self, samples, **_):
        """By the letter: it waits for no more credit than the head and a piece of Welcome's size take."""
        body = np.concatenate([np.asarray(s, dtype="<i4") for s in samples]).tobytes()
        head = pb.BlockHead(first_seq=self.next_seq, lengths=[len(s) for s in samples], body_bytes=len(body))
        at = 0
        while at < len(body):
            head_bytes = head.ByteSize() if at == 0 else 0
            while self.credit_bytes < self.sent_bytes + head_bytes + min(self.max_piece_bytes, len(body) - at):
                self.read()
            most = max([self.max_piece_bytes, *self.told])
            part = body[at:at + min(most, self.credit_bytes - self.sent_bytes - head_bytes)]
            self.send(pb.PushRequest(block=pb.SampleBlock(head=head, body=part)) if at == 0 else pb.PushRequest(chunk=pb.BlockChunk(body=part)))
            self.sent_bytes += head_bytes + len(part)
            self.sent_pieces.append((len(part), most))
            at += len(part)
        self.next_seq += len(samples)


def train(address, over):
    """Fetches and commits; once `over` is set only to the end of the feed."""
    opened = peer.open_job(address)
    fetch = peer.Fetch(address, opened)
    with peer.channel(address) as channel:
        while (batch := fetch.next()) is not None:
            if not over.is_set():
                peer.rpc.FeedStub(channel).Commit(pb.CommitRequest(job="train", log_id=opened.log_id, generation=opened.generation, step=batch.header.step,
                                                                   fetched=batch.header.step), timeout=60)


class ServerTest(unittest.TestCase):
    def test_a_late_stream_sends_larger_pieces_once_its_credit_grew(self):
        extra = {"memory": {"ingest": "16MiB"}}
        floor = (16 << 20) // 4 // 4096
        samples = [[1 + i % 1000] * 1024 for i in range(64)]  # 256 KiB
        with harness.Daemon(feeds=[{"name": "default", "seq_len": 1024, "window": 32}], extra=extra) as packd:
            early = [peer.Push(packd.address, stream=f"early{i}") for i in range(40)]
            for one in early:
                one.welcome()
            late, stock = Following(packd.address, stream="late"), peer.Push(packd.address, stream="stock")
            welcome = late.welcome()
            self.assertLessEqual(welcome.max_piece_bytes, 2 * floor, "a stream that comes late begins small")
            self.assertLessEqual(stock.welcome().max_piece_bytes, 2 * floor)
            for times in (1, 1, 1, 8, 8):
                late.block(samples * times)
                late.wait_durable(late.next_seq)
            self.assertEqual(late.told, sorted(late.told))
            self.assertGreaterEqual(late.told[0], welcome.max_piece_bytes)
            self.assertGreater(late.told[-1], 64 * welcome.max_piece_bytes)
            self.assertLessEqual(late.told[-1], (1 << 20) - 1024)
            self.assertTrue(any(size == most > 64 * welcome.max_piece_bytes for size, most in late.sent_pieces), "one of the size told")
            stock.block(samples)
            stock.wait_durable(stock.next_seq)
            for one in (late, stock, *early):
                one.close()

    def test_what_a_full_log_promises_is_kept(self):
        """Welcome with credit 0 tells limits, too: the first credit covers them, however many streams were told so."""
        extra = {"memory": {"ingest": "4MiB"}, "log": {"max_bytes": "16MiB", "durability": "process"}}
        with harness.Daemon(feeds=[{"name": "default", "seq_len": 1024, "window": 32, "jobs": [{"name": "train", "retain": {"commits": 1}}]}], extra=extra) as packd:
            fill = peer.Push(packd.address, stream="fill")
            fill.welcome()
            while fill.credit_bytes > fill.sent_bytes + (1 << 14):
                fill.block([[7] * 1024] * 2)
                fill.wait_durable(fill.next_seq)
            waiting = [peer.Push(packd.address, stream=f"w{i}") for i in range(40)]
            welcomes = [one.welcome() for one in waiting]
            for welcome in welcomes:
                self.assertEqual(welcome.credit_bytes, 0)
                self.assertNotEqual(welcome.why, pb.LOG_OK)
            liar = peer.Push(packd.address, stream="liar")
            liar.welcome()
            liar.credit_bytes = 1 << 20
            liar.block([[7] * 10])
            self.assertEqual(peer.error_detail(liar.fails()).reason, "CREDIT")
            over = threading.Event()
            trainer = threading.Thread(target=train, args=(packd.address, over))
            trainer.start()
            for one, welcome in zip(waiting, welcomes):
                while one.credit_bytes == 0:
                    one.read()
                self.assertGreaterEqual(one.credit_bytes, welcome.max_piece_bytes + welcome.max_head_bytes)
                one.block([[7] * (welcome.max_piece_bytes // 4)])
                one.wait_durable(1)
            over.set()
            for one in (fill, *waiting):
                one.close()
            peer.end_feed(packd.address)
            trainer.join(harness.DEADLINE_S)
            self.assertFalse(trainer.is_alive())


if __name__ == "__main__":
    unittest.main()
