"""Bad input gets a clear error and costs nothing else: beside every case a good producer and a good rank go on."""

import os
import socket
import unittest

import grpc
import numpy as np

import harness
import peer
from peer import pb

FEED = {"name": "default", "seq_len": 64, "window": 8, "vocab_size": 1000}
Code = grpc.StatusCode


class BadInputTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.packd = harness.Daemon(feeds=[FEED], extra={"memory": {"ingest": "8MiB"}}).start()
        cls.good = peer.Push(cls.packd.address, stream="good", timeout=300)
        cls.good.welcome()

    @classmethod
    def tearDownClass(cls):
        cls.good.close()
        cls.packd.stop()

    def tearDown(self):
        # Nobody else has noticed: the good producer, opened before all this, still gets its acks.
        self.good.block([[1, 2, 3]])
        self.good.wait_durable(self.good.next_seq)
        self.assertIsNone(self.packd.process.poll())
        self.assertEqual(self.packd.http("/livez")[0], 200)

    def test_json_lines_by_another_name_are_told(self):
        for name, text, told in (("a", '{"tokens": [1]}\n{"tokens": [2]}\n', True), ("b", "a text {\n", False)):
            path = os.path.join(harness.scratch(), name + ".txt")
            with open(path, "w") as file:
                file.write(text)
            done = self.packd.packctl("push", "--stream", name, path)
            self.assertEqual("taken as text, one sample; name it .jsonl for JSON lines" in done.stderr, told, done.stderr)

    def push(self, **hello):
        push = peer.Push(self.packd.address, **{"stream": self.id().rsplit(".", 1)[1], **hello})
        push.welcome()
        return push

    def refused(self, error, code, reason, *words):
        detail = peer.error_detail(error)
        self.assertEqual(error.code(), code, error)
        self.assertIsNotNone(detail, "packd-error-bin is missing")
        self.assertEqual(detail.reason, reason, detail)
        for word in words:
            self.assertIn(word, error.details())

    def test_unknown_feed(self):
        bad = peer.Push(self.packd.address, feed="nowhere")
        self.refused(bad.fails(), Code.NOT_FOUND, "UNKNOWN_FEED", "nowhere")
        with self.assertRaises(grpc.RpcError) as caught:
            peer.open_job(self.packd.address, feed="nowhere")
        self.refused(caught.exception, Code.NOT_FOUND, "UNKNOWN_FEED", "nowhere")

    def test_bad_names(self):
        self.refused(peer.Push(self.packd.address, stream="a/b").fails(), Code.INVALID_ARGUMENT, "BAD_NAME", "stream")
        self.refused(peer.Push(self.packd.address, stream="x" * 65).fails(), Code.INVALID_ARGUMENT, "BAD_NAME")

    def test_zero_bytes_in_names(self):
        """C would take what stands before one for the whole name."""
        self.refused(peer.Push(self.packd.address, stream="good\0x").fails(), Code.INVALID_ARGUMENT, "MALFORMED", "Hello.stream")
        push = self.push()
        push.block([[1, 2, 3]], tensors=[pb.TensorSpec(name="a\0b", dtype=pb.DTYPE_UINT8, axis=pb.AXIS_TOKEN)], labels_bytes=b"\0" * 3)
        self.refused(push.fails(), Code.INVALID_ARGUMENT, "MALFORMED", "TensorSpec.name", "byte 1 of its 3")
        with self.assertRaises(grpc.RpcError) as caught:
            peer.open_job(self.packd.address, job="train\0x")
        self.refused(caught.exception, Code.INVALID_ARGUMENT, "MALFORMED", "OpenJobRequest.job")

    def test_first_message_must_be_hello(self):
        push = self.push()
        push.send(pb.PushRequest(hello=pb.Hello(stream="again")))
        self.refused(push.fails(), Code.INVALID_ARGUMENT, "HELLO_EXPECTED")

    def test_gap_in_seq(self):
        push = self.push()
        push.block([[1, 2]])
        push.wait_durable(1)
        push.block([[1, 2]], first_seq=5)
        self.refused(push.fails(), Code.INVALID_ARGUMENT, "SEQ_GAP", "1", "5")

    def rejected(self, samples, bad, reason, **head):
        """Pushes samples of which those at `bad` are refused, each consuming its seq, the others accepted."""
        push = self.push()
        push.block(samples, **head)
        push.wait_durable(len(samples))
        got = {r.seq + i: r.reason for r in push.rejects for i in range(max(1, r.count))}
        self.assertEqual(got, {i: reason for i in bad})
        for reject in push.rejects:
            self.assertNotEqual(reject.detail, "")
        push.block([[7, 8]])
        push.wait_durable(len(samples) + 1)
        push.close()

    def test_empty_sample(self):
        self.rejected([[1], [], [2, 3]], [1], "EMPTY_SAMPLE")

    def test_over_length(self):
        self.rejected([[1] * 64, [1] * 65, [2] * 1000, [3]], [1, 2], "OVER_LENGTH")

    def test_token_outside_the_vocabulary(self):
        self.rejected([[1, 999], [1, 1000], [-1, 5], [2]], [1, 2], "TOKEN_OUT_OF_VOCAB")

    def test_weights(self):
        self.rejected([[1], [2], [3], [4]], [1, 2], "BAD_WEIGHT", weights=[1.0, -1.0, float("nan"), 0.5])

    def test_loss_mask_runs(self):
        self.rejected([[1] * 4, [1] * 4], [1], "BAD_MASK", mask_run_counts=[2, 2], mask_runs=[1, 3, 1, 9])

    def test_labels_that_look_shifted(self):
        tokens = [list(range(1, 60)), list(range(2, 61))]
        shifted = [t[1:] + [-100] for t in tokens]
        labels = np.concatenate([np.asarray(x, "<i4") for x in shifted]).tobytes()
        self.rejected(tokens, [0, 1], "LABELS_LOOK_SHIFTED", has_labels=True, labels_bytes=labels)

    def test_length_mismatch_inside_a_block(self):
        for lengths, body in (([3, 3], b"\0" * 20), ([3], b"\0" * 16), ([4294967295, 4294967295], b"\0" * 8)):
            push = self.push(stream=f"mismatch{len(body)}")
            push.send(pb.PushRequest(block=pb.SampleBlock(
                head=pb.BlockHead(first_seq=0, lengths=lengths, body_bytes=len(body)), body=body)))
            self.refused(push.fails(), Code.INVALID_ARGUMENT, "LENGTH_MISMATCH")

    def test_column_of_another_size(self):
        push = self.push()
        push.block([[1], [2]], weights=[1.0])
        self.refused(push.fails(), Code.INVALID_ARGUMENT, "COLUMN_SIZE", "weights")

    def test_pieces_out_of_order(self):
        push = self.push()
        push.send(pb.PushRequest(chunk=pb.BlockChunk(body=b"abcd")))
        self.refused(push.fails(), Code.INVALID_ARGUMENT, "PIECE_UNEXPECTED")
        push = self.push(stream="incomplete")
        head = pb.BlockHead(first_seq=0, lengths=[4], body_bytes=16)
        push.send(pb.PushRequest(block=pb.SampleBlock(head=head, body=b"\0" * 8)))
        push.send(pb.PushRequest(block=pb.SampleBlock(head=head, body=b"\0" * 8)))
        self.refused(push.fails(), Code.INVALID_ARGUMENT, "BLOCK_INCOMPLETE")

    def test_message_above_the_size_limit(self):
        push = self.push()
        push.send(pb.PushRequest(block=pb.SampleBlock(
            head=pb.BlockHead(first_seq=0, lengths=[2 << 20], body_bytes=8 << 20), body=b"\0" * (8 << 20))))
        self.assertEqual(push.fails().code(), Code.RESOURCE_EXHAUSTED)

    def test_more_than_the_credit(self):
        """Clients that ignore the credit are ended, and the daemon's memory stays within its budget."""
        before = self.packd.resident_bytes()
        pushes = [self.push(stream=f"greedy{i}") for i in range(8)]
        body = b"\0" * (900 << 10)
        for push in pushes:
            head = pb.BlockHead(first_seq=0, lengths=[len(body) // 4 * 40], body_bytes=len(body) * 40)
            push.send(pb.PushRequest(block=pb.SampleBlock(head=head, body=body)))
            for _ in range(39):
                push.send(pb.PushRequest(chunk=pb.BlockChunk(body=body)))
        for push in pushes:
            error = push.fails()
            self.assertEqual(error.code(), Code.RESOURCE_EXHAUSTED)
            self.assertIn(peer.error_detail(error).reason, ("CREDIT", "BLOCK_TOO_LARGE"))
        grown = self.packd.resident_bytes() - before
        print(f"8 greedy clients sent up to {8 * 40 * len(body) >> 20} MiB; anonymous memory grew by {grown >> 20} MiB")
        self.assertLess(grown, (8 << 20) + (64 << 20))

    def test_wrong_rank_and_conflicting_spec(self):
        with self.assertRaises(grpc.RpcError) as caught:
            peer.open_job(self.packd.address, job="ranks", dp_size=4, dp_rank=4)
        self.refused(caught.exception, Code.FAILED_PRECONDITION, "DP_RANK", "4")
        opened = peer.open_job(self.packd.address, job="ranks", dp_size=4, rows=2, world_token="w")
        with self.assertRaises(grpc.RpcError) as caught:
            peer.open_job(self.packd.address, job="ranks", dp_size=4, rows=1, accum=2, dp_rank=1, world_token="w")
        self.refused(caught.exception, Code.FAILED_PRECONDITION, "SPEC_MISMATCH", "rows", "1", "2")
        with self.assertRaises(grpc.RpcError) as caught:
            peer.open_job(self.packd.address, job="shape", dp_size=4, rows=2, step_packs=9)
        self.refused(caught.exception, Code.FAILED_PRECONDITION, "STEP_PACKS", "9", "4", "2")
        fetch = peer.Fetch(self.packd.address, opened, job="ranks", dp_rank=9)
        with self.assertRaises(grpc.RpcError) as caught:
            fetch.next()
        self.refused(caught.exception, Code.FAILED_PRECONDITION, "DP_RANK")

    def test_unknown_job(self):
        opened = peer.open_job(self.packd.address, job="known")
        fetch = peer.Fetch(self.packd.address, opened, job="unknown")
        with self.assertRaises(grpc.RpcError) as caught:
            fetch.next()
        self.refused(caught.exception, Code.NOT_FOUND, "UNKNOWN_JOB", "unknown")

    def test_foreign_log(self):
        with self.assertRaises(grpc.RpcError) as caught:
            peer.open_job(self.packd.address, job="foreign", log_id="0" * 32)
        self.refused(caught.exception, Code.FAILED_PRECONDITION, "LOG_ID")

    def test_commit_beyond_what_was_fetched(self):
        opened = peer.open_job(self.packd.address, job="committer")
        with peer.channel(self.packd.address) as ch, self.assertRaises(grpc.RpcError) as caught:
            peer.rpc.FeedStub(ch).Commit(pb.CommitRequest(feed="default", job="committer", generation=opened.generation,
                                                          step=5, fetched=2), timeout=10)
        self.refused(caught.exception, Code.INVALID_ARGUMENT, "COMMIT_BEYOND_FETCHED", "5", "2")

    def test_old_world_is_fenced(self):
        old = peer.open_job(self.packd.address, job="worlds", world_token="one")
        new = peer.open_job(self.packd.address, job="worlds", world_token="two")
        self.assertGreater(new.generation, old.generation)
        fetch = peer.Fetch(self.packd.address, old, job="worlds")
        with self.assertRaises(grpc.RpcError) as caught:
            fetch.next()
        self.assertEqual(caught.exception.code(), Code.ABORTED)
        with self.assertRaises(grpc.RpcError) as caught:
            peer.open_job(self.packd.address, job="worlds", world_token="one")
        self.assertEqual(caught.exception.code(), Code.ABORTED)

    def test_changed_content(self):
        self.push(content_id=b"v1").close()
        again = peer.Push(self.packd.address, stream="test_changed_content", content_id=b"v2")
        self.refused(again.fails(), Code.ALREADY_EXISTS, "CONTENT_CHANGED")

    def test_newer_hello_fences_the_older_call(self):
        old = self.push()
        new = self.push()
        old.block([[1, 2, 3]], first_seq=0)
        error = old.fails()
        self.refused(error, Code.ABORTED, "FENCED")
        new.block([[1, 2, 3]])
        new.wait_durable(1)
        new.close()

    def test_garbage_on_the_port(self):
        host, port = self.packd.address.rsplit(":", 1)
        for junk in (b"\0" * 4096, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)) * 64,
                     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 9000):
            with socket.create_connection((host, int(port)), timeout=10) as s:
                try:
                    s.sendall(junk)
                    s.shutdown(socket.SHUT_WR)
                    while s.recv(65536):
                        pass
                except OSError:
                    pass
        http_host, http_port = self.packd.http_address.rsplit(":", 1)
        with socket.create_connection((http_host, int(http_port)), timeout=10) as s:
            s.sendall(b"\x16\x03\x01garbage\r\n\r\n")
            s.shutdown(socket.SHUT_WR)
            try:
                while s.recv(65536):
                    pass
            except OSError:
                pass

    def test_garbage_in_a_message(self):
        with peer.channel(self.packd.address) as ch:
            raw = ch.stream_stream("/packd.v1.Ingest/Push")
            with self.assertRaises(grpc.RpcError) as caught:
                list(raw(iter([b"\xff\xff\xff\xff\x0f garbage"]), timeout=10))
            self.refused(caught.exception, Code.INVALID_ARGUMENT, "MALFORMED")
            unary = ch.unary_unary("/packd.v1.Feed/OpenJob")
            with self.assertRaises(grpc.RpcError) as caught:
                unary(b"\x0a\xff\xff", timeout=10)
            self.refused(caught.exception, Code.INVALID_ARGUMENT, "MALFORMED")
            with self.assertRaises(grpc.RpcError) as caught:
                ch.unary_unary("/packd.v1.Nothing/Here")(b"", timeout=10)
            self.assertEqual(caught.exception.code(), Code.UNIMPLEMENTED)

    def test_client_that_vanishes(self):
        for cut in range(3):
            push = self.push(stream=f"vanish{cut}")
            head = pb.BlockHead(first_seq=0, lengths=[8], body_bytes=32)
            push.send(pb.PushRequest(block=pb.SampleBlock(head=head, body=b"\1\0\0\0" * (2 + cut))))
            push.call.cancel()
            push.outgoing.put(None)
            push.channel.close()
            again = peer.Push(self.packd.address, stream=f"vanish{cut}")
            self.assertEqual(again.welcome().next_seq, 0, "half a block does not exist")
            again.close()
        opened = peer.open_job(self.packd.address, job="vanish")
        fetch = peer.Fetch(self.packd.address, opened, job="vanish")
        fetch.next_message()
        fetch.close()


if __name__ == "__main__":
    unittest.main()
