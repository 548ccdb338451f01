"""Push and Fetch, both directions, with the stock gRPC package and the .proto files alone."""

import random
import unittest

import numpy as np

import harness
import peer
from peer import pb


def check_contract(test, batch):
    """Every rule of the array table in packd.proto, in NumPy, from the arrays as served."""
    header = batch.header
    rows, width = header.rows, header.width
    positions_total = rows * width
    tokens, positions, ids = (batch[n].reshape(-1) for n in ("tokens", "positions", "segment_ids"))
    labels, weight = batch["labels"].reshape(-1), batch["loss_weight"].reshape(-1)
    cu, lens, index = batch["cu_seqlens"], batch["seq_lens"], batch["sample_index"]
    test.assertEqual(cu[0], 0)
    test.assertEqual(cu[-1], positions_total)
    test.assertTrue((np.diff(cu) > 0).all())
    test.assertEqual(set(range(0, positions_total, width)) - set(cu.tolist()), set(), "row starts are boundaries")
    test.assertEqual(len(lens), header.n_segments)
    test.assertEqual(int((lens > 0).sum()), header.n_real_segments)
    test.assertEqual(int(np.diff(cu).max()), header.max_seqlen)
    number, row, real = 0, -1, 0
    for s, (start, end) in enumerate(zip(cu, cu[1:])):
        if start // width != row:
            row, number = start // width, 0
        n = int(lens[s])
        number += n > 0
        here = slice(start, end)
        test.assertEqual(positions[here].tolist(), list(range(end - start)))
        test.assertEqual(ids[here].tolist(), [number] * n + [0] * (end - start - n) if n else [0] * (end - start))
        test.assertTrue((tokens[start + n:end] == header.pad_id).all())
        test.assertTrue((labels[start + n:end] == -100).all() and (weight[start + n:end] == 0).all())
        test.assertEqual(int(index[s]), real if n else -1)
        if n:
            expected = tokens[start:start + n].copy()
            if header.labels == pb.LABELS_SHIFTED:
                expected = np.append(expected[1:], -100)
            else:
                expected[0] = -100
            test.assertEqual(labels[start:start + n].tolist(), expected.tolist())
            test.assertEqual((weight[start:start + n] != 0).tolist(), (expected != -100).tolist())
            real += 1
    totals = header.batch
    test.assertEqual(totals.real_tokens + totals.gap + totals.tail_padding + totals.row_padding, positions_total)
    test.assertEqual(totals.real_tokens, int(lens.sum()))
    test.assertEqual(totals.loss[0].name, "tokens")
    test.assertEqual(totals.loss[0].count, int((labels != -100).sum()))
    test.assertAlmostEqual(totals.loss[0].weight, float(weight.astype(np.float64).sum()), places=6)
    padded, real_cu = batch["cu_seqlens_padded"], batch["cu_seqlens_real"]
    test.assertEqual(padded[-1], positions_total)
    test.assertTrue((np.diff(real_cu) <= np.diff(padded)).all() and (np.diff(real_cu) > 0).all())


class PeerTest(unittest.TestCase):
    def test_push_and_fetch(self):
        seed = random.randrange(1 << 30)
        print("seed", seed)
        rng = random.Random(seed)
        samples = [[rng.randrange(1, 50000) for _ in range(rng.randint(1, 64))] for _ in range(500)]
        with harness.Daemon() as packd:
            push = peer.Push(packd.address, stream="numbers", producer="peer_test", content_id=b"v1")
            welcome = push.welcome()
            self.assertEqual(len(welcome.log_id), 32)
            self.assertEqual((welcome.next_seq, welcome.seq_len), (0, 64))
            at = 0
            while at < len(samples):
                n = rng.randint(1, 90)
                push.block(samples[at:at + n], pieces=rng.randint(1, 5))
                at += n
            push.wait_durable(len(samples))
            push.end_stream()
            push.close()
            peer.end_feed(packd.address)
            opened = peer.open_job(packd.address, rows=3)
            self.assertEqual(opened.spec.seq_len, 64)
            fetch = peer.Fetch(packd.address, opened)
            batches = fetch.all()
            self.assertIsNotNone(fetch.end)
            self.assertEqual(fetch.end.last_step, batches[-1].header.step)
            self.assertEqual([b.header.step for b in batches], list(range(len(batches))))
            got = {}
            for batch in batches:
                check_contract(self, batch)
                self.assertIn(batch.delivery.verdict, (pb.VERDICT_STRUCTURAL, pb.VERDICT_PROBED))
                for key, tokens in batch.samples():
                    self.assertNotIn(key, got)
                    got[key] = tokens
            self.assertEqual(got, {("numbers", i, 0): s for i, s in enumerate(samples)})
            fetch.close()

    def test_core_arrays_are_a_prefix_of_all(self):
        with harness.Daemon() as packd:
            push = peer.Push(packd.address)
            push.welcome()
            push.block([[i + 1] * (5 + i % 50) for i in range(60)])
            push.wait_durable(60)
            push.close()
            peer.end_feed(packd.address)
            opened = peer.open_job(packd.address, rows=2)
            whole = peer.Fetch(packd.address, opened).all()
            core = peer.Fetch(packd.address, opened, arrays=pb.ARRAYS_CORE).all()
            self.assertEqual(len(whole), len(core))
            for a, b in zip(whole, core):
                self.assertEqual(a.header_bytes, b.header_bytes)
                self.assertEqual(len(b.payload), b.header.core_bytes)
                self.assertEqual(a.payload[:len(b.payload)], b.payload)
                self.assertEqual(len(a.payload), a.header.payload_bytes)

    def test_duplicates_and_resume_of_a_stream(self):
        with harness.Daemon() as packd:
            push = peer.Push(packd.address, content_id=b"v1")
            push.welcome()
            push.block([[1] * 10, [2] * 10, [3] * 10])
            push.wait_durable(3)
            push.close()
            again = peer.Push(packd.address, content_id=b"v1")
            self.assertEqual(again.welcome().next_seq, 3)
            again.block([[2] * 10, [3] * 10, [4] * 10], first_seq=1)
            again.block([[1] * 10], first_seq=0)
            again.wait_durable(4)
            again.close()
            peer.end_feed(packd.address)
            batches = peer.Fetch(packd.address, peer.open_job(packd.address)).all()
            samples = dict(pair for b in batches for pair in b.samples())
            self.assertEqual({k[1]: v[0] for k, v in samples.items()}, {0: 1, 1: 2, 2: 3, 3: 4})

    def test_health(self):
        with harness.Daemon() as packd:
            with peer.channel(packd.address) as ch:
                stub = peer.health_pb2_grpc.HealthStub(ch)
                serving = peer.health_pb2.HealthCheckResponse.SERVING
                for name in ("", "packd.v1.Ingest", "packd.v1.Feed", "packd.v1.Admin"):
                    reply = stub.Check(peer.health_pb2.HealthCheckRequest(service=name), timeout=10)
                    self.assertEqual(reply.status, serving, name)
                with self.assertRaises(peer.grpc.RpcError) as caught:
                    stub.Check(peer.health_pb2.HealthCheckRequest(service="nobody"), timeout=10)
                self.assertEqual(caught.exception.code(), peer.grpc.StatusCode.NOT_FOUND)

    def test_unknown_methods_are_unimplemented(self):
        with harness.Daemon() as packd, peer.channel(packd.address) as ch:
            call = ch.unary_unary("/packd.v1.Admin/Nothing", request_serializer=bytes, response_deserializer=bytes)
            with self.assertRaises(peer.grpc.RpcError) as caught:
                call(b"", timeout=10)
            self.assertEqual(caught.exception.code(), peer.grpc.StatusCode.UNIMPLEMENTED)
            self.assertEqual(peer.error_detail(caught.exception).reason, "UNKNOWN_METHOD")


if __name__ == "__main__":
    unittest.main()
