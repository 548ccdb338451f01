"""libpackd and packctl against a server that breaks, stalls, fences and lies: nothing is lost, repeated or reordered, every call
ends in time, every error names the server."""

import glob
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import PACKCTL, scratch, wait_for  # noqa: E402
from peer import pb  # noqa: E402
from fake_server import ROWS, Abort, Fake, FetchPlan, PushPlan  # noqa: E402

Code = grpc.StatusCode
CLIENT_API = os.path.join(os.getcwd(), "tests", "integration", "client_api")
ENV = {key: value for key, value in os.environ.items() if not key.startswith("PACKD_")}


def packctl(address, *arguments, stdin=None, timeout=60):
    return subprocess.run([PACKCTL, "--server", address, *map(str, arguments)], input=stdin, text=True, capture_output=True,
                          timeout=timeout, env=ENV)


def records(count, size=40):
    return [{"tokens": [(i * 7 + k) % 250 for k in range(1 + (i * 13) % size)], "key": f"k{i}"} for i in range(count)]


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def pushed(fake, name="s"):
    return [sample["tokens"] for sample in fake.streams[name].samples]


class Case(unittest.TestCase):
    def setUp(self):
        self.fake = Fake().start()
        self.addCleanup(self.fake.stop)

    def ctl(self, *arguments, expect=0, **more):
        done = packctl(self.fake.address, *arguments, **more)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done

    def push(self, rows, *arguments, **more):
        return self.ctl("push", "--stream", "s", *arguments, "-", stdin=jsonl(rows), **more)

    def fetch(self, *arguments, rank=0, size=1, rows=ROWS, **more):
        done = self.ctl("--json", "fetch", "--job", "train", "--dp-size", size, "--rank", rank, "--rows", rows, *arguments, **more)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return done, [line for line in lines if line.get("type") == "batch"], lines[-1] if lines else None


class PushTest(Case):
    def test_all_columns_arrive(self):
        rows = [{"tokens": [1, 2, 3, 4], "labels": [-100, 2, 3, 4], "loss_mask": [0, 1, 1, 0], "weight": 0.5, "key": "a", "group": "g",
                 "version": 9}, {"input_ids": [1], "tokens": [5]}, {"tokens": [6, 7], "loss_mask": [True, True]}]
        self.push(rows)
        first, second, third = self.fake.streams["s"].samples
        self.assertEqual((first["labels"], first["runs"], first["weight"], first["key"], first["group"], first["version"]),
                         ([-100, 2, 3, 4], [1, 2, 1], 0.5, b"a", b"g", 9))
        self.assertEqual((second["tokens"], second["labels"], second["key"]), ([5], None, b""))
        self.assertFalse(third["runs"])

    def test_breaks_between_blocks_and_inside_one(self):
        rows = records(3000)
        self.fake.push_plans = [PushPlan(samples=100, break_after_blocks=3, ack=False), PushPlan(samples=100, break_after_blocks=0),
                                PushPlan(samples=100, piece=500, break_after_pieces=31), PushPlan(samples=100, break_after_blocks=5),
                                PushPlan(samples=100, piece=900)]
        self.push(rows)
        self.assertEqual(pushed(self.fake), [row["tokens"] for row in rows])
        self.assertEqual(len(self.fake.hellos), 5)
        self.assertEqual([hello.log_id != "" for hello in self.fake.hellos], [False, True, True, True, True])

    def test_server_restarts(self):
        rows = records(2000)
        fake = self.fake
        fake.push_plans = [PushPlan(samples=50, break_after_blocks=4, ack=False)]
        process = subprocess.Popen([PACKCTL, "--server", fake.address, "push", "--stream", "s", "-"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)
        process.stdin.write(jsonl(rows[:1000]))
        process.stdin.flush()
        wait_for("the first samples", lambda: "s" in fake.streams and len(fake.streams["s"].samples) >= 200)
        fake.stop()
        fake.incarnation += 1
        fake.start()
        out, error = process.communicate(jsonl(rows[1000:]), timeout=60)
        self.assertEqual(process.returncode, 0, error)
        self.assertEqual(pushed(fake), [row["tokens"] for row in rows])

    def test_credit_is_never_overrun(self):
        rows = records(500)
        self.fake.push_plans = [PushPlan(credit=3000, grant=1000, samples=100, piece=700)]
        self.push(rows)
        self.assertEqual(pushed(self.fake), [row["tokens"] for row in rows])
        self.assertLessEqual(self.fake.most_used_over_credit, 0)

    def test_no_credit_ends_in_time_and_says_why(self):
        self.fake.push_plans = [PushPlan(credit=0, why=pb.LOG_STALLED)]
        done = self.push(records(3), "--timeout", "600ms", expect=4)
        self.assertIn(self.fake.address, done.stderr)
        self.assertIn("3 samples", done.stderr)

    def test_silent_server_ends_in_time(self):
        self.fake.push_plans = [PushPlan(silent=True)]
        done = self.push(records(1), "--timeout", "400ms", expect=4, timeout=10)
        self.assertIn(self.fake.address, done.stderr)

    def test_nobody_listens(self):
        done = packctl("127.0.0.1:1", "push", "--timeout", "400ms", "--stream", "s", "-", stdin="{}", timeout=10)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("127.0.0.1:1", done.stderr)
        self.assertIn("UNAVAILABLE", done.stderr)

    def test_fenced_is_final(self):
        self.fake.push_plans = [PushPlan(samples=1, break_after_blocks=1, status=Abort(Code.ABORTED, "FENCED", "a newer producer"))]
        done = self.push(records(50), "--json", expect=1)
        self.assertEqual(json.loads(done.stdout)["error"]["reason"], "FENCED")
        self.assertIn("stream s of feed default", done.stderr)
        self.assertEqual(len(self.fake.hellos), 1)

    def test_server_that_lost_acked_samples(self):
        self.fake.push_plans = [PushPlan(samples=1, break_after_blocks=3), PushPlan(next_seq=0)]
        done = self.push(records(50), "--json", expect=5)
        self.assertEqual(json.loads(done.stdout)["error"]["reason"], "SAMPLES_LOST")

    def test_rejects_are_told(self):
        self.fake.push_plans = [PushPlan(reject=lambda seq, sample: seq % 2 == 1, samples=3)]
        done = self.push(records(1000), "--json", expect=6)
        summary = json.loads(done.stdout)
        self.assertEqual([summary[n] for n in ("rejected", "rejects", "durable_seq", "samples", "pushed")], [500, {"OVER_LENGTH": 500}, 1000, 1000, 500])
        for flags, code in (([], 6), (["--allow-refused"], 0)):
            self.fake.push_plans = [PushPlan(reject=lambda seq, sample: sample["tokens"] == [9, 9])]
            done = self.ctl("push", "--stream", f"r{code}", "--end-feed", *flags, "-", stdin=jsonl([{"tokens": [1]}, {"tokens": [9, 9]}]), expect=code)
            self.assertIn("1 samples stored, 1 refused", done.stdout)
            self.assertEqual(self.fake.feed_ended, code == 0, done.stderr)
        self.assertNotIn("is not ended", done.stderr)

    def test_same_file_twice_and_changed(self):
        path = os.path.join(scratch(), "notes v1.jsonl")
        with open(path, "w") as file:
            file.write(jsonl(records(20)))
        first = json.loads(self.ctl("--json", "push", "--end", path).stdout)
        self.assertRegex(first["stream"], r"^notes-v1-jsonl-[0-9a-f]{16}$")
        self.assertEqual((first["pushed"], first["already"], first["stream_ended"]), (20, 0, True))
        again = json.loads(self.ctl("--json", "push", "--end", path).stdout)
        self.assertEqual((again["pushed"], again["already"], again["stream"]), (0, 20, first["stream"]))
        self.assertIn("nothing to do", self.ctl("push", path).stdout)
        done = self.ctl("--json", "push", "--field", "key", path, expect=1)
        self.assertEqual(json.loads(done.stdout)["error"]["reason"], "CONTENT_CHANGED")

    def test_goes_on_after_a_broken_push(self):
        rows = records(30)
        path = os.path.join(scratch(), "x.jsonl")
        with open(path, "w") as file:
            file.write(jsonl(rows))
        self.fake.push_plans = [PushPlan(samples=10, break_after_blocks=2, ack=False,
                                         status=Abort(Code.FAILED_PRECONDITION, "HALTED", "stopped"))]
        self.ctl("push", path, expect=1)
        summary = json.loads(self.ctl("--json", "push", path).stdout)
        self.assertEqual((summary["already"], summary["pushed"]), (20, 10))
        self.assertEqual(pushed(self.fake, summary["stream"]), [row["tokens"] for row in rows])

    def test_bad_line_is_named_or_counted(self):
        text = '{"tokens": [1]}\n\n{"tokens": []}\n{"tokens": [2, "x"]}\n{"tokens": [-5]}\n{"tokens": [3]}\n'
        done = self.ctl("push", "--stream", "s", "-", stdin=text, expect=3)
        self.assertIn("stdin:4: tokens[1] is a string: expected an integer", done.stderr)
        done = self.ctl("--json", "push", "--skip-bad", "--stream", "t", "-", stdin=text)
        summary = json.loads(done.stdout)
        self.assertEqual((summary["bad"], summary["empty_lines"], summary["empty_samples"], summary["pushed"]), (2, 1, 1, 2))
        self.assertEqual(pushed(self.fake, "t"), [[1], [3]])

    def test_a_file_is_read_to_its_end_before_anything_is_sent(self):
        path = os.path.join(scratch(), "w.jsonl")
        good = jsonl(records(2000))
        pathlib.Path(path).write_text(good + "{bad\n")
        done = self.ctl("push", "--end-feed", path, expect=3)
        self.assertIn("w.jsonl:2001:", done.stderr)
        self.assertIn("nothing was sent", done.stderr)
        self.assertIn("no field nope; the record has tokens, key", self.ctl("push", "--field", "nope", path, expect=3).stderr)
        self.assertIn("stdin:2001:", self.ctl("push", "-", stdin=good + "{bad\n", expect=3).stderr)
        pathlib.Path(path).write_text("\n")
        self.assertIn("no sample was found to push", self.ctl("push", path).stdout)
        self.assertEqual((self.fake.streams, self.fake.hellos, self.fake.feed_ended), ({}, [], False))
        pathlib.Path(path).write_text(jsonl([{"tokens": [1]}, {"tokens": [0] * 1100000}]))
        done = self.ctl("push", "--stream", "big", path, expect=1)
        self.assertIn("sample 1 has 4400000 bytes: the server takes at most 4194304; nothing was sent", done.stderr)
        self.assertEqual(pushed(self.fake, "big"), [])

    def test_what_a_broken_pipe_of_samples_left_is_told(self):
        rows = records(700)
        done = self.push(rows, expect=0)
        done = self.ctl("push", "--stream", "live", "-", stdin=jsonl(rows) + "{bad\n", expect=3)
        self.assertIn("stdin:701:", done.stderr)
        self.assertRegex(done.stderr, "the first 700 samples of this input are stored in stream live of feed default.*"
                         "packctl delete-stream --stream live --feed default")
        self.assertEqual(pushed(self.fake, "live"), [row["tokens"] for row in rows])

    def test_end_of_feed_and_stream(self):
        self.push(records(5), "--end", "--end-feed")
        self.assertTrue(self.fake.feed_ended and self.fake.streams["s"].ended)

    def test_pipes_by_name_are_read_like_stdin(self):
        rows = records(20)
        fifo = os.path.join(scratch(), "x.fifo")
        os.mkfifo(fifo)
        writer = threading.Thread(target=lambda: pathlib.Path(fifo).write_text(jsonl(rows)))
        writer.start()
        first = json.loads(self.ctl("--json", "push", "--end-feed", fifo).stdout)
        writer.join()
        self.assertEqual((first["pushed"], first["input"], first["feed_ended"]), (20, fifo, True))
        self.assertEqual(pushed(self.fake, first["stream"]), [row["tokens"] for row in rows])
        for path in ("-", "/dev/stdin"):
            again = json.loads(self.ctl("--json", "push", "--end-feed", path, stdin=jsonl(rows)).stdout)
            self.assertEqual((again["stream"], again["already"], again["pushed"]), (first["stream"], 20, 0))
        self.ctl("push", "--stream", "t", "/dev/stdin", stdin=jsonl(rows[:3]))
        self.assertEqual(pushed(self.fake, "t"), [row["tokens"] for row in rows[:3]])
        done = self.ctl("push", "--stream", "t", "/dev/fd/0", stdin="{", expect=3)
        self.assertIn("/dev/fd/0:1:", done.stderr)

    def test_nothing_stored_never_ends_a_feed(self):
        directory = scratch()
        empty = os.path.join(directory, "empty.jsonl")
        open(empty, "w").close()
        for arguments, stdin in (([empty], None), (["-"], ""), (["/dev/null"], None), (["--stream", "s", "-"], "\n\n"),
                                 (["--skip-bad", "-"], "{}\n")):
            with self.subTest(arguments):
                done = self.ctl("push", "--end-feed", *arguments, stdin=stdin, expect=1)
                self.assertIn("feed default is not ended: no sample of", done.stderr)
                self.assertIn("packctl end-feed", done.stderr)
        self.fake.push_plans = [PushPlan(reject=lambda seq, sample: True)]
        done = self.ctl("--json", "push", "--end-feed", "--stream", "r", "-", stdin=jsonl(records(5)), expect=1)
        self.assertEqual(json.loads(done.stdout)["error"]["reason"], "NO_SAMPLES")
        self.assertIn("5 samples refused", done.stderr)
        self.assertFalse(self.fake.feed_ended)
        self.ctl("push", "--stream", "r", "-", stdin="", expect=0)

    def test_what_is_no_input(self):
        directory = scratch()
        path = os.path.join(directory, "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            self.assertIn("neither a file nor a directory", self.ctl("push", path, expect=3).stderr)
        done = self.ctl("push", "--end-feed", "/dev/zero", expect=3)
        self.assertIn("/dev/zero: binary data; expected JSON lines", done.stderr)
        self.assertFalse(self.fake.feed_ended or self.fake.hellos)

    def test_a_wait_is_told_once(self):
        self.fake.push_plans = [PushPlan(credit=0, why=pb.LOG_FULL)]
        done = self.push(records(3), "--timeout", "900ms", expect=4)
        self.assertEqual(done.stderr.count("waiting: the log is full"), 1, done.stderr)
        self.fake.push_plans = [PushPlan(credit=0)]
        done = self.push(records(3), "--timeout", "2500ms", expect=4)
        self.assertEqual(done.stderr.count("has not acknowledged 3 samples"), 1, done.stderr)
        lasting = Abort(Code.RESOURCE_EXHAUSTED, "LOG_FULL", "100 of 100 bytes are used", 20)
        self.fake.push_plans = [PushPlan(break_after_blocks=1, ack=False)] + [PushPlan(break_after_blocks=0, status=lasting)] * 40
        done = self.push(records(3), "--timeout", "900ms", expect=4)
        self.assertEqual(done.stderr.count("waiting: the log is full: packd at"), 1, done.stderr)
        self.assertIn("100 of 100 bytes are used", done.stderr)

    def test_byte_order_mark(self):
        directory = scratch()
        rows = records(3)
        for name, text in (("a.jsonl", jsonl(rows)), ("b.json", json.dumps(rows)), ("c.json", jsonl(rows))):
            path = os.path.join(directory, name)
            with open(path, "w", encoding="utf-8-sig") as file:
                file.write(text)
            self.ctl("push", "--stream", name[0], path)
            self.assertEqual(pushed(self.fake, name[0]), [row["tokens"] for row in rows])
        self.ctl("push", "--stream", "pipe", "-", stdin="\ufeff" + jsonl(rows))
        self.assertEqual(pushed(self.fake, "pipe"), [row["tokens"] for row in rows])

    def test_large_samples_in_pieces(self):
        rows = [{"tokens": list(range(20000)), "labels": list(range(20000))}, {"tokens": [1]}, {"tokens": list(range(300))}]
        self.fake.push_plans = [PushPlan(piece=3000)]
        self.push(rows)
        self.assertEqual(pushed(self.fake), [row["tokens"] for row in rows])
        self.assertEqual(self.fake.streams["s"].samples[0]["labels"], rows[0]["labels"])

    def test_sample_above_the_limit(self):
        rows = [{"tokens": [1]}, {"tokens": [0] * 1100000}, {"tokens": [2]}]
        done = self.push(rows, expect=1)
        self.assertIn("sample of 1100000 tokens (4400000 bytes): the server takes at most 4194304", done.stderr)
        self.fake.streams.clear()
        path = os.path.join(scratch(), "x.jsonl")
        with open(path, "w") as file:
            file.write(jsonl(rows))
        for already in (0, 2):
            summary = json.loads(self.ctl("--json", "push", "--skip-bad", "--stream", "s", path).stdout)
            self.assertEqual((summary["already"], summary["pushed"], summary["bad"]), (already, 2 - already, 1))
            self.assertEqual(pushed(self.fake), [[1], [2]])


class FetchTest(Case):
    def identities(self, batches):
        return [(batch["step"], batch["micro"]) for batch in batches]

    def test_to_the_end_with_files(self):
        out = scratch()
        _, batches, summary = self.fetch("--out", out, "--commit-every", 4)
        self.assertEqual(self.identities(batches), [(s, 0) for s in range(6)])
        self.assertEqual((summary["end"], summary["steps"], summary["last_step"], summary["committed_step"]), ("END_OF_FEED", 6, 5, 5))
        self.assertEqual([(c.step, c.fetched) for c in self.fake.commits], [(3, 3), (5, 5)])
        self.assertEqual(len(glob.glob(out + "/step-0000000?-micro-00-rank-0000.safetensors")), 6)
        self.assertEqual(os.listdir(out), [name for name in os.listdir(out) if name.endswith(".safetensors")])
        with open(out + "/step-00000003-micro-00-rank-0000.safetensors", "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        self.assertEqual(json.loads(header["__metadata__"]["packd"])["step"], 3)
        self.assertEqual(header["tokens"]["shape"], [2, 64])

    def test_core_and_all_give_the_same_files(self):
        a, b = scratch(), scratch()
        self.fetch("--out", a, "--arrays", "core")
        self.fetch("--out", b, "--arrays", "all")
        self.assertEqual([fetch.arrays for fetch in self.fake.fetches], [pb.ARRAYS_CORE, pb.ARRAYS_ALL])
        for name in os.listdir(a):
            with open(os.path.join(a, name), "rb") as one, open(os.path.join(b, name), "rb") as other:
                self.assertEqual(one.read(), other.read(), name)

    def test_breaks_and_a_new_incarnation(self):
        fake = self.fake
        fake.fetch_plans = [FetchPlan(break_at=(1, 1, 500)), FetchPlan(break_at=(1, 1, 0)), FetchPlan(break_at=(4, 0, 1), chunk=7),
                            FetchPlan(header_piece=50)]
        fake.open_plans = [None, Abort(Code.UNAVAILABLE, "STARTING", "not yet", 20)]
        _, batches, summary = self.fetch("--accum", 2, "--world", "w1")
        self.assertEqual(self.identities(batches), [(s, m) for s in range(6) for m in range(2)])
        self.assertEqual(summary["reopens"], 3)
        self.assertEqual([(f.first_step, f.first_micro) for f in fake.fetches], [(0, 0), (1, 1), (1, 1), (4, 0)])
        self.assertEqual({(o.world_token, o.dp_rank) for o in fake.opens}, {("w1", 0)})

    def test_server_restarts(self):
        fake = self.fake
        fake.fetch_plans = [FetchPlan(wait_at=3)]
        process = subprocess.Popen([PACKCTL, "--server", fake.address, "--json", "fetch", "--job", "train", "--dp-size", "1", "--rank", "0",
                                    "--rows", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)
        lines = [process.stdout.readline() for _ in range(3)]
        fake.stop()
        fake.incarnation += 1
        fake.start()
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, error)
        steps = [json.loads(line) for line in lines + out.splitlines()]
        self.assertEqual([s["step"] for s in steps if s["type"] == "batch"], list(range(6)))

    def test_credit_bounds_what_is_sent_ahead(self):
        self.fake.steps = 40
        self.fetch("--prefetch", 3)
        # One batch until it is known how large they are, then never more than three that are not yet taken.
        self.assertEqual(self.fake.credits[0], 1)
        self.assertLessEqual(max(self.fake.credits), 3)
        self.assertLessEqual(sum(self.fake.credits), 40 + 3)

    def test_waiting_is_told_and_ends_in_time(self):
        self.fake.fetch_plans = [FetchPlan(wait_at=0)]
        done, _, last = self.fetch("--timeout", "1500ms", expect=4, timeout=20)
        self.assertRegex(done.stderr, r"waiting for step 0: the window needs .*more samples? \(streams slow\); `packctl flush` or")
        self.assertIn("gave up after 1.5 s without a batch (--timeout)", done.stderr)
        self.assertEqual(last["error"]["reason"], "WAIT_SAMPLES")
        self.assertTrue(all(words in last["error"]["text"] for words in ("step 0 micro 0", self.fake.address)), last)

    def test_nobody_listens(self):
        done = packctl("127.0.0.1:2", "fetch", "--server", "127.0.0.1:1", "--job", "j", "--dp-size", 1, "--rank", 0, "--timeout", "400ms", timeout=10)
        self.assertIn("127.0.0.1:1:", done.stderr, "--server counts behind the command too")
        done = packctl("127.0.0.1:1", "fetch", "--job", "j", "--dp-size", 1, "--rank", 0, "--timeout", "400ms", timeout=10)
        self.assertEqual(done.returncode, 4)
        self.assertIn("127.0.0.1:1", done.stderr)

    def test_fenced_without_a_token_is_final(self):
        self.fake.fetch_plans = [FetchPlan(break_at=(2, 0, 0), status=Abort(Code.ABORTED, "FENCED", "a new world"))]
        done, batches, last = self.fetch(expect=1)
        self.assertEqual(last["error"]["code"], "PACKD_EFENCED")
        self.assertIn("no world token", done.stderr)
        self.assertEqual(len(self.fake.opens), 1)

    def test_superseded_world_is_final(self):
        self.fake.fetch_plans = [FetchPlan(break_at=(2, 0, 0), status=Abort(Code.ABORTED, "FENCED", "a new world"))]
        self.fake.open_plans = [None, Abort(Code.ABORTED, "STALE_WORLD", "this world is over")]
        done, _, last = self.fetch("--world", "old", expect=1)
        self.assertEqual(last["error"]["reason"], "STALE_WORLD")
        self.assertEqual(len(self.fake.opens), 2)

    def test_skipped_steps_raise_the_generation(self):
        fake = self.fake
        done = []

        class Skip(Abort):
            def end(self, context):
                fake.generation += 1
                fake.skipped = [pb.StepRange(first=3, last=4)]
                done.append(True)
                super().end(context)

        fake.fetch_plans = [FetchPlan(break_at=(2, 0, 0), status=Skip(Code.ABORTED, "FENCED", "steps were skipped"))]
        _, batches, summary = self.fetch("--world", "w", "--commit-every", 1)
        self.assertEqual(done, [True])
        self.assertEqual([batch["step"] for batch in batches], [0, 1, 2, 5])
        self.assertEqual((summary["generation"], fake.commits[-1].step, fake.commits[-1].generation), (2, 5, 2))

    def test_commit_follows_a_moved_generation(self):
        self.fake.commit_plans = [Abort(Code.ABORTED, "FENCED", "moved")]
        self.fetch("--world", "w", "--commit-every", 6)
        self.assertEqual((len(self.fake.opens), self.fake.committed), (2, 5))

    def test_damage_is_fetched_again_once(self):
        self.fake.fetch_plans = [FetchPlan(damage=(2, 0))]
        _, batches, _ = self.fetch()
        self.assertEqual([batch["step"] for batch in batches], list(range(6)))

    def test_lasting_damage_is_final(self):
        self.fake.fetch_plans = [FetchPlan(damage=(2, 0)), FetchPlan(damage=(2, 0))]
        _, batches, last = self.fetch(expect=5)
        self.assertEqual((last["error"]["reason"], [batch["step"] for batch in batches]), ("DIGEST", [0, 1]))

    def lie(self, change, *arguments):
        self.fake.fetch_plans = [FetchPlan(lie=change), FetchPlan(lie=change)]
        _, batches, last = self.fetch(*arguments, expect=5)
        return batches, last

    def test_lies_in_the_header(self):
        def offset(header):
            header.arrays[1].offset = 1 << 40

        def shape(header):
            header.arrays[0].shape[0] = 1 << 62

        def rank(header):
            header.dp_rank = 3

        def step(header):
            header.step += 1

        def stream(header):
            header.samples.stream[0] = 99

        def column(header):
            header.samples.seq.append(1)

        def payload(header):
            header.payload_bytes = 1 << 50

        for change in (offset, shape, rank, step, stream, column, payload):
            with self.subTest(change.__name__):
                batches, last = self.lie(change)
                self.assertIn(last["error"]["reason"], ("BATCH_HEADER", "WRONG_BATCH"))
                self.assertEqual(batches, [])

    def test_structural_check_finds_wrong_totals(self):
        def totals(header):
            header.batch.real_tokens += 1

        done, batches, last = self.fetch("--no-check")
        self.assertEqual(len(batches), 6)
        self.fake.fetch_plans = [FetchPlan(lie=totals)]
        done, batches, _ = self.fetch(expect=5)
        self.assertIn("totals", done.stderr)

    def test_feed_that_ends_too_early(self):
        self.fake.steps = 3
        self.fake.fetch_plans = [FetchPlan()]
        _, _, summary = self.fetch("--steps", 2)
        self.assertEqual((summary["end"], summary["steps"]), ("STEP_LIMIT", 2))
        _, _, summary = self.fetch("--from", 1, "--steps", 50)
        self.assertEqual((summary["end"], summary["first_step"], summary["steps"]), ("END_OF_FEED", 1, 2))
        for first in (3, 100000):
            done, _, last = self.fetch("--from", first, expect=1)
            self.assertEqual(last["error"]["reason"], "BEYOND_END")
            self.assertIn(f"has ended with step 2 of job train: there is no step {first}", done.stderr)


class LibraryTest(Case):
    """The C interface itself, by client_api.c."""

    def scenario(self, name):
        done = subprocess.run([CLIENT_API, self.fake.address, name], text=True, capture_output=True, timeout=60, env=ENV)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_next_waits_no_longer_than_told(self):
        self.fake.fetch_plans = [FetchPlan(wait_at=0)]
        self.scenario("waiting")

    def test_callbacks_run_on_the_callers_thread(self):
        self.fake.fetch_plans = [FetchPlan(wait_at=0)]
        self.scenario("callbacks")

    def test_batches_outlive_the_job(self):
        self.scenario("batches")
        self.assertEqual(self.fake.committed, 5)

    def test_producer_without_credit_is_bounded(self):
        self.fake.push_plans = [PushPlan(credit=0)]
        self.scenario("no_credit")

    def test_many_small_puts(self):
        self.fake.push_plans = [PushPlan(break_after_blocks=2)]
        self.scenario("small_puts")
        self.assertEqual(pushed(self.fake), [[i] for i in range(5000)])

    def test_linger(self):
        self.scenario("linger")

    def test_bad_options_and_dead_address(self):
        self.scenario("bad_options")


class CommandTest(Case):
    def test_status_with_numbers_beyond_signed(self):
        status = json.loads(self.ctl("--json", "status").stdout)
        self.assertEqual(status["feeds"][0]["lanes"][0]["position"], (1 << 63) + 5)
        self.assertEqual(status["incarnation"], "%016x" % 7)
        self.assertIn("train", self.ctl("status").stdout)
        self.assertNotIn("\033", self.ctl("top", "--count", 1).stdout)

    def test_commit_by_an_operator(self):
        self.ctl("commit", "--job", "train", "--step", 4)
        self.assertEqual((self.fake.commits[0].step, self.fake.commits[0].fetched, self.fake.commits[0].generation), (4, 4, 1))
        done = self.ctl("commit", "--job", "other", "--step", 4, expect=1)
        self.assertIn("has no job other", done.stderr)
        self.fake.commit_plans = [Abort(Code.INVALID_ARGUMENT, "COMMIT_BEYOND_FETCHED", "no more than step 999")]
        done = self.ctl("commit", "--job", "train", "--step", 999, expect=1)
        self.assertIn("step 999 cannot be committed: job train of feed default has delivered steps up to 8 (planned: 10 steps)",
                      done.stderr)

    def test_unknown_call(self):
        done = self.ctl("--json", "flush", expect=1)
        self.assertEqual(json.loads(done.stdout)["error"]["code"], "PACKD_EUNSUPPORTED")

    def test_usage(self):
        for arguments, text in ((["psuh", "x"], 'did you mean "push"'), (["fetch", "--rnak", "1"], "did you mean --rank"),
                                (["fetch", "--job", "j"], "are required"),
                                (["skip-steps", "--job", "j", "--first", "5", "--last", "3"], "--first 5 is above"), (["push"], "which file"),
                                (["status", "x"], "unexpected"),
                                (["fetch", "--rank", "-1"], "expected a whole number"), (["top", "--interval", "5"], "--interval")):
            with self.subTest(arguments):
                self.assertIn(text, self.ctl(*arguments, expect=2).stderr)
        for arguments in (["--help"], ["push", "--help"], ["fetch", "-h"], ["--version"], ["version"]):
            self.assertTrue(self.ctl(*arguments).stdout)

    def test_output_that_cannot_be_written(self):
        fetch = ["fetch", "--job", "train", "--dp-size", "1", "--rank", "0", "--rows", "2"]
        for arguments in (["status"], ["--json", "status"], ["top", "--count", "1"], fetch, ["--json", *fetch], ["version"], ["--version"],
                          ["--help"], ["push", "--help"]):
            with self.subTest(arguments), open(os.devnull) as read_only:
                done = subprocess.run([PACKCTL, "--server", self.fake.address, *arguments], stdout=read_only, stderr=subprocess.PIPE,
                                      text=True, timeout=30, env=ENV)
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertEqual(done.stderr.count("stdout: not all of the output could be written"), 1, done.stderr)

    def test_addresses(self):
        for address in ("", "foo", ":70", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:99999", "127.0.0.1:7x", "unix:",
                        "unix:x", "::1:70", "[]:70"):
            for command in (["status"], ["push", "-"], ["fetch", "--job", "j", "--dp-size", "1", "--rank", "0"]):
                with self.subTest((address, command)):
                    done = packctl(address, *command, stdin="", timeout=10)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertIn(f'server "{address}": expected host:port', done.stderr)
        for address in ("[::1]:1", "localhost:65535", "unix:/nowhere", "dns:///localhost:1"):
            with self.subTest(address):
                done = packctl(address, "--timeout", "200ms", "status", timeout=10)
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)  # ours; none of gRPC's own

    def test_ranks_are_below_the_size(self):
        done = packctl(self.fake.address, "fetch", "--job", "train", "--dp-size", 4, "--rank", 4, timeout=10)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--rank 4: expected 0 to 3, for --dp-size 4", done.stderr)

    def test_interrupt_ends_an_opening(self):
        """Somebody listens and never answers: a signal does not wait for the deadline."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = "127.0.0.1:%d" % silent.getsockname()[1]
            for command in (("fetch", "--job", "train", "--dp-size", "1", "--rank", "0"), ("push", __file__)):
                with self.subTest(command[0]):
                    process = subprocess.Popen([PACKCTL, "--server", address, "--timeout", "600s", *command], stderr=subprocess.PIPE, text=True, env=ENV)
                    silent.accept()[0].close()  # it is at it
                    process.send_signal(signal.SIGINT)
                    self.assertEqual(process.wait(timeout=30), -signal.SIGINT, process.communicate()[1])

    def test_interrupt_ends_a_waiting_fetch(self):
        self.fake.fetch_plans = [FetchPlan(wait_at=0)]
        process = subprocess.Popen([PACKCTL, "--server", self.fake.address, "fetch", "--job", "train", "--dp-size", "1", "--rank", "0",
                                    "--rows", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)
        wait_for("the fetch", lambda: self.fake.fetches)
        process.terminate()
        _, error = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130, error)


if __name__ == "__main__":
    threading.excepthook = lambda args: None
    unittest.main()
