"""Records that change plans: mixture weights, samples left out, streams and feeds deleted; each outlives a kill."""

import collections
import json
import os
import signal
import threading
import unittest

import grpc

import harness
import peer
from peer import pb

FEED = {"name": "default", "seq_len": 64, "window": 8, "plan_ahead": "1KiB"}
MIXED = {**FEED, "sources": {"web": {"weight": 1}, "code": {"weight": 1}}}
DAEMON = {"log": {"max_bytes": "64MiB", "durability": "process"}}


def push(packd, stream, samples, **hello):
    call = peer.Push(packd.address, stream=stream, feed=hello.pop("feed", "default"), **{k: v for k, v in hello.items() if k == "source"})
    head = {k: v for k, v in hello.items() if k != "source"}
    welcome = call.welcome()
    call.block(samples, **head)
    call.wait_durable(welcome.next_seq + len(samples))
    call.close()


def samples(count, length=16, first=1):
    return [[first + i] * length for i in range(count)]


def fetched(packd, job, feed="default", **more):
    """[(stream, seq)] in the order of steps, to the end of the feed."""
    opened = peer.open_job(packd.address, job=job, feed=feed, **more)
    return [key[:2] for batch in peer.Fetch(packd.address, opened, job=job, feed=feed).all() for key, _ in batch.samples()]


def status_of(packd, feed="default", **more):
    reply = peer.admin(packd.address, "Status", pb.StatusRequest(feed=feed, **more))
    return next(f for f in reply.feeds if f.name == feed)


class WordsTest(unittest.TestCase):
    """What packctl says to somebody who uses it for the first time."""

    def test_words(self):
        path = os.path.join(harness.scratch(), "a.jsonl")
        with open(path, "w") as file:
            file.writelines(json.dumps({"tokens": [1] * 100}) + "\n" for _ in range(10))
        with harness.Daemon(feeds=[MIXED, {"name": "plain", "seq_len": 1000}]) as packd:
            def ctl(code, *arguments):
                done = packd.packctl(*arguments, check=False)
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                return done.stdout + done.stderr

            text = ctl(1, "push", path)
            self.assertRegex(text, r"has no source '.*' in its configuration; it has: web, code \(packctl push --source NAME\)")
            ctl(0, "push", "--feed", "plain", "--stream", "a", path)
            text = ctl(1, "push", "--feed", "plain", "--stream", "a", "--field", "tokens", path)
            self.assertIn("(packctl push --stream NAME), or delete the stream first (packctl delete-stream --feed plain --stream a)", text)
            self.assertIn("has no job 'nope'", ctl(1, "status", "--job", "nope"))
            self.assertIn("there is no feed nope", ctl(1, "status", "--feed", "nope"))
            opened = peer.open_job(packd.address, job="j", feed="plain", step_packs=1)
            self.assertEqual(opened.committed_step, -1)
            text = ctl(0, "status", "--feed", "plain")
            self.assertRegex(text, r"(?m)^    j +1 +\S+ +never +never ")
            text = ctl(0, "explain", "--feed", "plain", "--job", "j", "--step", "900")
            self.assertIn("is not planned yet", text)
            self.assertRegex(text, r"it waits: \w+")
            ctl(0, "end-feed", "--feed", "plain")
            self.assertEqual(ctl(0, "fetch", "-q", "--feed", "plain", "--job", "k", "--dp-size", "1", "--rank", "0", "--commit-every", "1").count("\n"), 1)
            self.assertRegex(ctl(0, "status", "--feed", "plain"), r"(?m)^    k +1 +1 +1 +1 ")


class ControlTest(unittest.TestCase):
    def fails(self, packd, code, reason, call, request):
        with self.assertRaises(grpc.RpcError) as caught:
            peer.admin(packd.address, call, request)
        self.assertEqual((caught.exception.code(), peer.error_detail(caught.exception).reason), (code, reason),
                         caught.exception.details())

    def mix(self, packd, **weights):
        return peer.admin(packd.address, "SetMixture", pb.SetMixtureRequest(
            weights=[pb.SourceWeight(source=name, weight=weight) for name, weight in weights.items()]))

    def test_mixture(self):
        """Weights act from the first pack that is not planned, and a kill changes nothing of what comes out."""
        daemon = harness.Daemon(feeds=[MIXED], extra=DAEMON)
        with daemon as packd:
            push(packd, "w", samples(400), source="web")
            push(packd, "c", samples(400), source="code")
            before = harness.wait_for("packs are planned", lambda: status_of(packd).planned_packs)
            answer = self.mix(packd, web=9, code=1)
            self.assertGreater(answer.record, 0)
            self.assertEqual(answer.effective_pack, before)
            self.assertEqual(self.mix(packd, code=1, web=9).record, 0)
            invalid, precondition = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
            weight = lambda name, value: pb.SourceWeight(source=name, weight=value)  # noqa: E731
            for status, reason, weights in ((invalid, "BAD_MIXTURE", [weight("web", 1)]),
                                            (invalid, "BAD_MIXTURE", [weight("web", 0), weight("code", 0)]),
                                            (invalid, "BAD_MIXTURE", [weight("web", 1), weight("web", 1), weight("code", 1)]),
                                            (invalid, "BAD_RANGE", [weight("web", 1), weight("code", 1 << 40)]),
                                            (precondition, "UNKNOWN_SOURCE", [weight("web", 1), weight("books", 1)])):
                self.fails(packd, status, reason, "SetMixture", pb.SetMixtureRequest(weights=weights))
            packd.kill()
            packd.start()  # an unchanged file: what was set by hand stays
            self.assertEqual(self.mix(packd, web=9, code=1).record, 0)
            peer.end_feed(packd.address)
            order = fetched(packd, "train")
            self.assertEqual(len(order), 800)
            head = order[:4 * before]
            self.assertAlmostEqual(sum(s == "w" for s, _ in head) / len(head), 0.5, delta=0.2)
            later = order[4 * before + 40:4 * before + 340]
            self.assertAlmostEqual(sum(s == "w" for s, _ in later) / len(later), 0.9, delta=0.05)

    def test_samples_are_left_out(self):
        daemon = harness.Daemon(feeds=[MIXED], extra=DAEMON)
        with daemon as packd:
            push(packd, "w", samples(300), source="web", versions=[i // 100 for i in range(300)],
                 keys=[b"key-%d" % (i % 50) for i in range(300)], groups=[b"g%d" % (i % 3) for i in range(300)])
            push(packd, "c", samples(300), source="code")
            planned = harness.wait_for("packs are planned", lambda: status_of(packd).planned_packs)
            skip = lambda **what: peer.admin(packd.address, "SkipSamples", pb.SkipSamplesRequest(**what))  # noqa: E731
            answer = skip(stream="c", first_seq=200, last_seq=249, why='bad "dump" event=forged')
            self.assertEqual(answer.effective_pack, planned)
            self.assertIn("""why="bad 'dump' event=forged\"""", packd.log())
            skip(source="web", version_below=1)
            skip(stream="w", key=b"key-7")
            skip(group=b"g2", version_below=2)
            skip(stream="c", first_seq=299, last_seq=299)
            for line in (r"stream=c source=any first_seq=200 last_seq=249 group_xxh3=any key_xxh3=any version_below=0 from_pack=\d+ why=\"bad",
                         r"stream=any source=web first_seq=0 last_seq=any group_xxh3=any key_xxh3=any version_below=1 from_pack",
                         r"stream=w source=any first_seq=0 last_seq=any group_xxh3=any key_xxh3=[0-9a-f]{16} version_below=0 from_pack",
                         r"stream=any source=any first_seq=0 last_seq=any group_xxh3=[0-9a-f]{16} key_xxh3=any version_below=2 from_pack"):
                self.assertRegex(packd.log(), "samples_skipped feed=default " + line)
            for what, reason, status in (({}, "BAD_RANGE", grpc.StatusCode.INVALID_ARGUMENT),
                                         ({"first_seq": 3}, "BAD_RANGE", grpc.StatusCode.INVALID_ARGUMENT),
                                         ({"stream": "c", "first_seq": 3, "last_seq": 2}, "BAD_RANGE", grpc.StatusCode.INVALID_ARGUMENT),
                                         ({"stream": "x"}, "UNKNOWN_STREAM", grpc.StatusCode.NOT_FOUND),
                                         ({"source": "x"}, "UNKNOWN_SOURCE", grpc.StatusCode.FAILED_PRECONDITION)):
                self.fails(packd, status, reason, "SkipSamples", pb.SkipSamplesRequest(**what))
            packd.kill()
            packd.start()
            # What comes later is not touched, whatever the rules say.
            push(packd, "w", samples(50), source="web", versions=[0] * 50, keys=[b"key-7"] * 50, groups=[b"g2"] * 50)
            peer.end_feed(packd.address)
            order = fetched(packd, "train")
            packed = set(order)
            self.assertEqual(len(packed), len(order))
            early = set(order[:4 * planned])
            left_out = {("c", s) for s in (*range(200, 250), 299)}
            left_out |= {("w", s) for s in range(300) if s < 100 or s % 50 == 7 or (s % 3 == 2 and s < 200)}
            everything = {("w", s) for s in range(350)} | {("c", s) for s in range(300)}
            self.assertEqual(packed - early, everything - early - left_out)
            self.assertTrue(left_out & early)  # planned before: they stay
            self.assertEqual(status_of(packd).ingest.skipped, len(left_out - early))
            self.fails(packd, grpc.StatusCode.FAILED_PRECONDITION, "FEED_ENDED", "SkipSamples", pb.SkipSamplesRequest(stream="c"))

    def test_rules_are_bounded(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            push(packd, "s", samples(4))
            for i in range(64):
                peer.admin(packd.address, "SkipSamples", pb.SkipSamplesRequest(stream="s", first_seq=i + 100, last_seq=i + 101))
            self.fails(packd, grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_SKIPS", "SkipSamples",
                       pb.SkipSamplesRequest(stream="s", first_seq=9, last_seq=12))
            # Rules that have nothing left to do make room.
            push(packd, "s", samples(200))
            opened = peer.open_job(packd.address)
            fetch = peer.Fetch(packd.address, opened)
            for _ in range(40):
                fetch.next()
            fetch.close()
            harness.wait_for("there is room again", lambda: self.rule_fits(packd))

    def rule_fits(self, packd):
        try:
            peer.admin(packd.address, "SkipSamples", pb.SkipSamplesRequest(stream="s", first_seq=1000, last_seq=2000))
            return True
        except grpc.RpcError:
            return False

    def test_delete_stream(self):
        daemon = harness.Daemon(feeds=[{**FEED, "stream_count": 2}], extra=DAEMON)
        with daemon as packd:
            push(packd, "a", samples(200))
            live = peer.Push(packd.address, stream="b")
            live.welcome()
            live.block(samples(200))
            live.wait_durable(200)
            self.fails(packd, grpc.StatusCode.FAILED_PRECONDITION, "IN_USE", "DeleteStream", pb.DeleteStreamRequest(stream="b"))
            self.fails(packd, grpc.StatusCode.NOT_FOUND, "UNKNOWN_STREAM", "DeleteStream", pb.DeleteStreamRequest(stream="c"))
            planned = harness.wait_for("packs are planned", lambda: status_of(packd).planned_packs)
            peer.admin(packd.address, "DeleteStream", pb.DeleteStreamRequest(stream="b", force=True))
            live.block(samples(1))
            error = live.fails()
            self.assertEqual((error.code(), peer.error_detail(error).reason), (grpc.StatusCode.ABORTED, "FENCED"))
            self.assertEqual([s.name for s in status_of(packd, streams=True).streams], ["a"])
            packd.kill()
            packd.start()
            self.assertEqual([s.name for s in status_of(packd, streams=True).streams], ["a"])
            # The name is free, for other content; of the two streams that end the feed, one has ended.
            again = peer.Push(packd.address, stream="b", content_id="other")
            self.assertEqual(again.welcome().next_seq, 0)
            again.block(samples(30))
            again.end_stream()
            again.close()
            order = fetched(packd, "train")
            self.assertEqual(status_of(packd).ended, True)
            early = [key for key in order[:4 * planned] if key[0] == "b"]
            self.assertEqual(len(order), 200 + 30 + len(early))

    def test_delete_feed(self):
        feeds = [{**FEED, "jobs": [{"name": "train"}]}, {**FEED, "name": "other"}]
        daemon = harness.Daemon(feeds=feeds, extra=DAEMON)
        with daemon as packd:
            for feed in ("default", "other"):
                push(packd, "of-" + feed, samples(2000, length=60), feed=feed)
            kept = fetched_some(packd, "other")
            fetched_some(packd, "default")
            live = peer.Push(packd.address, stream="live")
            live.welcome()
            self.fails(packd, grpc.StatusCode.FAILED_PRECONDITION, "IN_USE", "DeleteFeed", pb.DeleteFeedRequest())
            opened = peer.open_job(packd.address)
            call = peer.Fetch(packd.address, opened, first_step=100000)
            harness.wait_for("it fetches", lambda: next(j for j in status_of(packd).jobs if j.name == "train").ranks[0].calls)
            self.assertGreater(peer.admin(packd.address, "DeleteFeed", pb.DeleteFeedRequest(force=True)).record, 0)
            with self.assertRaises(grpc.RpcError) as caught:
                call.next()
            self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
            self.assertEqual(live.fails().code(), grpc.StatusCode.ABORTED, "told, although it sends nothing")
            self.check_anew(packd, 7)
            packd.kill()
            packd.start()
            harness.wait_for("the old one is gone", lambda: status_of(packd).log_bytes < 1 << 20)
            self.check_anew(packd, 11)
            packd.kill()
            packd.start()
            self.assertEqual(fetched_some(packd, "other", job="again"), kept)
            packd.packctl("--json", "delete-feed", "--feed", "default", "--force")
            self.check_anew(packd, 5)
            packd.stop()
            found = packd_log_verify(packd)
            self.assertEqual(found.returncode, 0, found.stdout + found.stderr)
            packd.start()

    def test_a_new_feed_has_served_nothing(self):
        """After DeleteFeed status and page show the new feed; counters of metrics, which go by the name, go on."""
        def page():
            return json.loads(packd.http("/status.json")[1])["feeds"][0]

        def counters():
            return {k: v for k, v in packd.metrics().items() if k.startswith("packd_pack_tokens_total")}

        with harness.Daemon(feeds=[FEED], extra=DAEMON) as packd:
            peer.open_job(packd.address)
            nothing = packd.packctl("status").stdout
            self.assertIn("served    0 tokens, - padding (since the start, all jobs)", nothing)
            self.assertRegex(nothing, r"(?m)^    train +1 .* -  ")
            push(packd, "a", samples(100, length=60))
            fetched_some(packd, "default")
            harness.wait_for("all counts", lambda: status_of(packd).served.real == 1200)
            harness.wait_for("the page shows what was served", lambda: len(page()["rows"]) == 20 and page()["padding"]["all"])
            self.assertRegex(packd.packctl("status").stdout, r"served    1,200 tokens, 6\.250 % padding \(since the start, all jobs\)")
            before = counters()
            self.assertGreater(sum(before.values()), 0)
            peer.admin(packd.address, "DeleteFeed", pb.DeleteFeedRequest(force=True))
            self.assertIn("served    0 tokens, - padding", packd.packctl("status").stdout)
            harness.wait_for("the page begins anew", lambda: page()["rows"] == [] and page()["padding"]["all"] is None)
            self.assertEqual([page()["padding"][k] for k in ("now", "hour")], [None, None])
            after = counters()
            self.assertEqual(after, before)
            push(packd, "b", samples(40, length=32))
            fetched_some(packd, "default", steps=4)
            harness.wait_for("all counts", lambda: status_of(packd).served.real == 256)
            harness.wait_for("the new feed's page", lambda: len(page()["rows"]) == 4 and page()["padding"]["all"] == 0)
            self.assertIn("served    256 tokens, 0.000 % padding", packd.packctl("status").stdout)

    def test_delete_feed_under_ranks(self):
        """Over and over, while producers push and ranks fetch: they are told, and nothing is taken for damage."""
        codes, over, batches = collections.Counter(), threading.Event(), [0]

        def go_on(what):
            while not over.is_set():
                try:
                    what()
                except grpc.RpcError as error:
                    codes[error.code()] += 1

        def produce():
            call = peer.Push(packd.address, stream="a", timeout=20)
            seq = call.welcome().next_seq
            while not over.is_set():
                call.block(samples(20, length=30))
                seq += 20
                call.wait_durable(seq)

        def train(job):
            call = peer.Fetch(packd.address, peer.open_job(packd.address, job=job), job=job, credit=8, timeout=20)
            while not over.is_set() and call.next():
                batches[0] += 1

        with harness.Daemon(feeds=[FEED], extra=DAEMON) as packd:
            threads = [threading.Thread(target=go_on, args=(what,)) for what in (produce, lambda: train("one"), lambda: train("two"))]
            for thread in threads:
                thread.start()
            for _ in range(40):
                more = batches[0] + 20
                harness.wait_for("they go on", lambda: batches[0] >= more)
                peer.admin(packd.address, "DeleteFeed", pb.DeleteFeedRequest(force=True))
            over.set()
            peer.admin(packd.address, "DeleteFeed", pb.DeleteFeedRequest(force=True))
            for thread in threads:
                thread.join(harness.DEADLINE_S)
            self.assertFalse(any(thread.is_alive() for thread in threads))
            self.assertEqual(set(codes) - {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED}, set())
            self.assertNotIn("violation", packd.log())
            packd.stop()
            self.assertEqual(packd_log_verify(packd).returncode, 0)
            packd.start()

    def check_anew(self, packd, count):
        """Streams from seq 0, jobs from step 0 and generation 1, and what was pushed now alone."""
        if peer.admin(packd.address, "Status", pb.StatusRequest()).feeds[0].planned_packs:
            peer.admin(packd.address, "DeleteFeed", pb.DeleteFeedRequest(force=True))
        self.assertEqual(list(status_of(packd).jobs), [])
        push(packd, "of-default", samples(count, length=33, first=500))
        peer.end_feed(packd.address)
        opened = peer.open_job(packd.address, world_token="anew")
        self.assertEqual((opened.first_step, opened.generation, opened.created), (0, 1, True))
        batches = peer.Fetch(packd.address, opened).all()
        got = [sample for batch in batches for sample in batch.samples()]
        self.assertEqual(got, [(("of-default", i, 0), [500 + i] * 33) for i in range(count)])

    def test_tokenizer(self):
        """The first digest that a producer states is the feed's, for good."""
        daemon = harness.Daemon(feeds=[FEED], extra=DAEMON)
        with daemon as packd:
            push(packd, "silent", samples(1))
            self.assertEqual(peer.open_job(packd.address).spec.tokenizer_digest, b"")
            first = peer.Push(packd.address, stream="a", tokenizer_digest=b"\x01\x02")
            first.welcome()
            first.close()
            packd.kill()
            packd.start()
            self.assertEqual(peer.open_job(packd.address).spec.tokenizer_digest, b"\x01\x02")
            self.assertEqual(status_of(packd).jobs[0].spec.tokenizer_digest, b"\x01\x02")
            for stream, digest in (("a", b"\x01"), ("b", b"\x01\x03")):
                error = peer.Push(packd.address, stream=stream, tokenizer_digest=digest).fails()
                self.assertEqual(peer.error_detail(error).reason, "TOKENIZER_MISMATCH")
                self.assertIn("0102", error.details())
            push(packd, "silent", samples(1))  # not stated, not checked

    def test_changed_file(self):
        """What may change in the file acts behind the horizon; what may not is refused, both values named."""
        daemon = harness.Daemon(feeds=[MIXED], extra=DAEMON)
        with daemon as packd:
            push(packd, "w", samples(400), source="web")
            push(packd, "c", samples(400), source="code")
            before = harness.wait_for("packs are planned", lambda: status_of(packd).planned_packs)
            self.mix(packd, web=9, code=1)
            packd.stop()
            changed = {**MIXED, "window": 24, "sources": {"web": {"weight": 1}, "code": {"weight": 9}}}
            for key, value, words in (("seq_len", 128, ("'64'", "'128'")), ("labels", "shifted", ("'unshifted'", "'shifted'")),
                                      ("merge", "ordered", ("'arrival'",)), ("seed", 5, ("'0'", "'5'")), ("pad_id", 7, ("'0'", "'7'")),
                                      ("seg_align", 2, ("'1'", "'2'")), ("width", "batch", ("'fixed'", "'batch'"))):
                packd.config["feeds"] = [{**changed, key: value, **({"streams": ["w", "c"], "sources": {}} if key == "merge" else {})}]
                with self.assertRaises(AssertionError) as caught:
                    packd.start()
                for word in words:
                    self.assertIn(word, str(caught.exception).rsplit("FIXED", 1)[-1], key)
                packd.process = None
            packd.config["feeds"] = [changed]
            packd.start()
            self.assertEqual(self.mix(packd, web=1, code=9).record, 0)  # the file's, which is newer
            packd.kill()
            packd.start()
            peer.end_feed(packd.address)
            order = fetched(packd, "train")
            self.assertEqual(len(order), 800)
            later = order[4 * before + 60:4 * before + 300]
            self.assertAlmostEqual(sum(s == "c" for s, _ in later) / len(later), 0.9, delta=0.07)

    def test_reload(self):
        """SIGHUP: what may change acts without a restart; a file that changes a fixed key changes nothing."""
        daemon = harness.Daemon(feeds=[MIXED], extra=DAEMON)
        with daemon as packd:
            push(packd, "w", samples(100), source="web")
            push(packd, "c", samples(100), source="code")
            changed = {**MIXED, "window": 24, "sources": {"web": {"weight": 2}, "code": {"weight": 5}}}
            self.hup(packd, {**changed, "seq_len": 128}, "reload_failed reason=FIXED_KEY")
            self.hup(packd, {**changed, "window": 0}, "reload_failed reason=")
            self.assertGreater(self.mix(packd, web=1, code=2).record, 0)
            self.hup(packd, changed, "reloaded applied=0 ignored=0 feeds_changed=1")
            self.assertEqual(self.mix(packd, web=2, code=5).record, 0)
            packd.kill()
            packd.start()
            self.assertEqual(self.mix(packd, web=2, code=5).record, 0)
            peer.end_feed(packd.address)
            self.assertEqual(len(fetched(packd, "train")), 200)

    def hup(self, packd, feed, words):
        before = packd.log().count(words)
        with open(os.path.join(packd.directory, "packd.yaml"), "w") as file:
            json.dump({**packd.config, "feeds": [feed]}, file)
        packd.process.send_signal(signal.SIGHUP)
        harness.wait_for(words, lambda: packd.log().count(words) > before)
        packd.config["feeds"] = [feed]

    def test_packctl(self):
        with harness.Daemon(feeds=[MIXED]) as packd:
            push(packd, "w", samples(20), source="web")
            self.assertIn("from pack 0", packd.packctl("set-mixture", "web=3", "code=1").stdout)
            self.assertIn("already", packd.packctl("set-mixture", "web=3", "code=1").stdout)
            reply = json.loads(packd.packctl("--json", "skip-samples", "--stream", "w", "--first", "3", "--last", "5").stdout)
            self.assertGreater(int(reply["record"]), 0)
            self.assertIn("left out", packd.packctl("skip-samples", "--source", "code", "--why", "late").stdout)
            self.assertIn("gone", packd.packctl("delete-stream", "--stream", "w").stdout)
            self.assertIn("empty", packd.packctl("delete-feed", "--feed", "default").stdout)
            for arguments in (("set-mixture",), ("set-mixture", "web"), ("skip-samples",), ("skip-samples", "--first", "3"),
                              ("delete-stream",), ("delete-feed",)):
                self.assertEqual(packd.packctl(*arguments, check=False).returncode, 2, arguments)
            for command in ("set-mixture", "skip-samples", "delete-stream", "delete-feed"):
                self.assertIn("packctl " + command, packd.packctl(command, "--help").stdout)


def fetched_some(packd, feed, job="train", steps=20):
    opened = peer.open_job(packd.address, job=job, feed=feed)
    batches = peer.Fetch(packd.address, opened, job=job, feed=feed, last_step=steps - 1).all()
    return [batch.payload for batch in batches]


def packd_log_verify(packd):
    import subprocess
    return subprocess.run([harness.PACKCTL, "log", "verify", os.path.join(packd.directory, "data")], capture_output=True, text=True,
                          timeout=harness.DEADLINE_S)


if __name__ == "__main__":
    unittest.main()
