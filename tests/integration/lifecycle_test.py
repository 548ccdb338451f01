"""The daemon's life: start, wrong flags, a second daemon, SIGTERM in the middle of everything, restart."""

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import unittest

import harness
import peer

FEED = {"name": "default", "seq_len": 128, "window": 32}


def run(*arguments):
    return subprocess.run([harness.PACKD, *arguments], capture_output=True, text=True, timeout=30)


class LifecycleTest(unittest.TestCase):
    def test_help_and_wrong_flags(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        for flag in ("--config", "--listen", "--http", "--data-dir", "--check-config"):
            self.assertIn(flag, done.stdout)
        done = run("--no-such-flag")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no-such-flag", done.stderr)
        self.assertEqual(run("--version").returncode, 0)

    def check_config(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
            file.write(text)
        done = run("--config", file.name, "--check-config")
        os.unlink(file.name)
        return done

    def test_check_config(self):
        done = self.check_config("feeds:\n  - name: a\n    seq_len: 2048\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2048", done.stdout)
        again = self.check_config(done.stdout)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(again.stdout, done.stdout, "the effective configuration is a configuration")
        for text, words in (("fedes: []\n", ("fedes", "feeds")),
                            ("feeds:\n  - name: a\n    seq_length: 5\n", ("seq_length", "seq_len")),
                            ("log: {max_bytes: lots}\n", ("max_bytes", "lots")),
                            ("feeds:\n  - {name: a, seq_len: 100, seg_align: 64}\n", ("seq_len", "seg_align")),
                            ("feeds:\n  - {name: a}\n  - {name: a}\n", ("a",)),
                            ("feeds: [\n", ())):
            done = self.check_config(text)
            self.assertEqual(done.returncode, 1, text)
            for word in words:
                self.assertIn(word, done.stderr)
        self.assertEqual(run("--config", "/nonexistent.yaml", "--check-config").returncode, 1)

    def test_the_deployed_configuration_is_one(self):
        done = run("--config", "deploy/packd.yaml", "--check-config")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("balance: cost", done.stdout)

    def test_check_config_reads_the_files_it_names(self):
        directory = harness.scratch()
        short = os.path.join(directory, "short")
        with open(short, "w") as file:
            file.write("x")
        auth = "auth:\n  - {name: web, token_file: %s, roles: [produce]}\n"
        for text, words in (("tls: {cert: /nosuch/c.pem, key: /nosuch/k.pem}\n", "tls.cert: cannot open /nosuch/c.pem: No such file or directory"),
                            (auth % "/nosuch/token", "auth: web: cannot open /nosuch/token: No such file or directory"),
                            (auth % short, "has 1 bytes")):
            done = self.check_config(text)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(words, done.stderr)
            self.assertIn("feeds:", done.stdout)
        good = os.path.join(directory, "good")
        with open(good, "w") as file:
            file.write("a token that is long enough")
        self.assertEqual(self.check_config(auth % good).returncode, 0)

    def test_why_an_address_cannot_be_listened_on(self):
        directory = harness.scratch()
        plain = os.path.join(directory, "plain")
        open(plain, "w").close()
        for address, reason in (("unix:/nosuch/dir/s.sock", "directory /nosuch/dir: No such file or directory"),
                                (f"unix:{plain}/s.sock", f"{plain} is no directory"), (f"unix:{plain}", "is there and is no socket"),
                                ("foo.invalid:7070", "'foo.invalid' is not resolved"), ("192.0.2.1:7070", "it is not an address of this machine")):
            with self.subTest(address):
                done = run("--listen", address, "--http", "127.0.0.1:0", "--data-dir", harness.scratch())
                self.assertEqual(done.returncode, 1)
                self.assertIn(f"cannot listen on {address}: ", done.stderr)
                self.assertIn(reason, done.stderr)
        done = run("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ports-file", "/nosuch/x.json", "--data-dir", harness.scratch())
        self.assertIn("cannot write /nosuch/x.json: No such file or directory", done.stderr)

    def test_address_in_use_and_directory_in_use(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            done = run("--listen", packd.address, "--http", "127.0.0.1:0", "--data-dir", harness.scratch())
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"cannot listen on {packd.address}: Address already in use", done.stderr)
            done = run("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", os.path.join(packd.directory, "data"))
            self.assertEqual(done.returncode, 1)
            self.assertIn(str(packd.process.pid), done.stderr)

    def test_a_log_that_cannot_be_opened_says_what_to_do(self):
        directory = harness.scratch()
        for log, words in (({"path": f"{directory}/log", "max_bytes": "64TiB"}, ("log.max_bytes (64.0TiB)", "address space", "ulimit -v")),
                           ({"path": f"{directory}/missing/log"}, (f"{directory}/missing/log", "its parent is missing", "mkdir -p"))):
            with open(f"{directory}/packd.yaml", "w") as file:
                json.dump({"listen": ["127.0.0.1:0"], "http": "127.0.0.1:0", "log": log}, file)
            self.assertEqual(run("--config", file.name, "--check-config").returncode, 0)
            done = run("--config", file.name)
            self.assertEqual(done.returncode, 1, done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)

    def test_http(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            self.assertEqual(packd.http("/livez")[0], 200)
            self.assertEqual(packd.http("/readyz")[0], 200)
            status, text, _ = packd.http("/nothing")
            self.assertEqual(status, 404)
            self.assertIn("/status.json", text)
            self.assertEqual(packd.http("/metrics", method="DELETE")[0], 405)
            status, text, headers = packd.http("/metrics")
            self.assertEqual(status, 200)
            self.assertIn("text/plain", headers["Content-Type"])
            self.assertIn("packd_build_info", text)
            status, text, headers = packd.http("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
            self.assertIn("openmetrics", headers["Content-Type"])
            self.assertTrue(text.endswith("# EOF\n"))

    def test_unix_socket(self):
        path = os.path.join(harness.scratch(), "s")
        with harness.Daemon(feeds=[FEED], arguments=["--listen", "unix:" + path]) as packd:
            done = subprocess.run([harness.PACKCTL, "--server", "unix:" + path, "--json", "status"], capture_output=True, text=True,
                                  timeout=30)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["log_id"], packd.status()["log_id"])

    def test_sigterm_in_the_middle_of_everything(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            started = threading.Barrier(5)
            outcomes = []

            def produce(name):
                push = peer.Push(packd.address, stream=name)
                push.welcome()
                started.wait(30)
                try:
                    while True:
                        push.block([[1] * 100] * 50)
                        push.wait_durable(push.next_seq - 200)
                except (peer.grpc.RpcError, StopIteration) as error:
                    outcomes.append(error)
                push.outgoing.put(None)

            def train(rank):
                opened = peer.open_job(packd.address, dp_size=2, dp_rank=rank, world_token="w")
                fetch = peer.Fetch(packd.address, opened, dp_rank=rank)
                started.wait(30)
                try:
                    while fetch.next():
                        pass
                except peer.grpc.RpcError as error:
                    outcomes.append(error)
                fetch.outgoing.put(None)

            threads = [threading.Thread(target=produce, args=(n,)) for n in ("a", "b")]
            threads += [threading.Thread(target=train, args=(r,)) for r in range(2)]
            for t in threads:
                t.start()
            started.wait(30)
            harness.wait_for("some batches", lambda: packd.metrics().get('packd_pack_tokens_total{feed="default",kind="real"}', 0) > 10000)
            packd.stop(signal.SIGTERM)
            for t in threads:
                t.join(30)
                self.assertFalse(t.is_alive())
            self.assertEqual({e.code() for e in outcomes if isinstance(e, peer.grpc.RpcError)} - {peer.grpc.StatusCode.UNAVAILABLE}, set())

    def test_restart_goes_on_where_it_was(self):
        packd = harness.Daemon(feeds=[FEED])
        packd.start()
        push = peer.Push(packd.address, stream="a")
        welcome = push.welcome()
        push.block([[i % 900 + 1] * (1 + i % 128) for i in range(200)])
        push.wait_durable(200)
        first = peer.Fetch(packd.address, peer.open_job(packd.address))
        before = [first.next() for _ in range(5)]
        first.close()
        push.close()
        packd.kill()
        packd.start()
        again = peer.Push(packd.address, stream="a")
        second = again.welcome()
        self.assertEqual((second.log_id, second.next_seq), (welcome.log_id, 200))
        self.assertNotEqual(second.incarnation, welcome.incarnation)
        again.block([[7] * 30] * 20)
        again.wait_durable(220)
        again.end_stream()
        again.close()
        peer.end_feed(packd.address)
        call = peer.Fetch(packd.address, peer.open_job(packd.address, from_start=True))
        after = call.all()
        for a, b in zip(before, after):
            self.assertEqual((a.header_bytes, a.payload), (b.header_bytes, b.payload))
        keys = [k for b in after for k, _ in b.samples()]
        self.assertEqual(sorted(keys), [("a", i, 0) for i in range(220)])
        packd.stop()

    def test_sighup_reloads_what_it_can(self):
        packd = harness.Daemon(feeds=[FEED], extra={"drain": "7s", "validate": {"fraction": 0.5}})
        packd.start()

        def reload(config):
            with open(os.path.join(packd.directory, "packd.yaml"), "w") as file:
                file.write(config if isinstance(config, str) else json.dumps(config))
            before = packd.log().count(" reloaded ") + packd.log().count(" reload_failed ")
            packd.process.send_signal(signal.SIGHUP)
            harness.wait_for("the reload", lambda: packd.log().count(" reloaded ") + packd.log().count(" reload_failed ") > before)
            return [line for line in packd.log().splitlines() if " reload" in line]

        lines = reload({"feeds": [{**FEED, "window": 64}], "drain": "9s", "validate": {"fraction": 0.25}, "memory": {"batches": "2GiB"}})
        said = {tuple(word for word in line.split()[2:4]) for line in lines}
        self.assertEqual(said, {("reload_feeds", 'text="planning'), ("reload_applied", "key=drain"), ("reload_applied", "key=validate.fraction"),
                                ("reload_ignored", "key=memory.batches"), ("reloaded", "applied=2")})
        self.assertEqual(packd.status()["validator"]["fraction"], 0.25)
        lines = reload("feeds: [\n")
        self.assertIn("reload_failed", lines[-1])
        self.assertEqual(packd.status()["validator"]["fraction"], 0.25)
        self.assertEqual(packd.http("/readyz")[0], 200)
        packd.stop()
        self.assertIn("why=SIGTERM grace_s=9", packd.log())

    def test_sigterm_at_any_moment_of_the_start(self):
        """From the first instruction of main on, an early SIGTERM ends the daemon as a later one does."""
        for delay in range(0, 30, 3):
            packd = harness.Daemon(feeds=[FEED])
            config = os.path.join(packd.directory, "packd.yaml")
            with open(config, "w") as file:
                json.dump(packd.config, file)
            process = subprocess.Popen([harness.PACKD, "--config", config, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir",
                                        os.path.join(packd.directory, "data")], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

            def held():  # back for later, or caught already
                with open(f"/proc/{process.pid}/status") as file:
                    masks = re.findall(r"Sig(?:Blk|Cgt):\s+(\w+)", file.read())
                return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)
            harness.wait_for("main has begun", lambda: held() or process.poll() is not None)
            threading.Event().wait(delay / 1000)
            process.send_signal(signal.SIGTERM)
            text = process.communicate(timeout=harness.DEADLINE_S)[1]
            self.assertEqual(process.returncode, 0, f"after {delay} ms: {text}")
            self.assertIn("stopped", text)

    def test_second_sigterm_is_fast(self):
        packd = harness.Daemon(feeds=[FEED], extra={"drain": "60s"})
        packd.start()
        push = peer.Push(packd.address, stream="a")
        push.welcome()
        fetch = peer.Fetch(packd.address, peer.open_job(packd.address))
        fetch.next_message()
        process = packd.process
        process.send_signal(signal.SIGTERM)
        harness.wait_for("stopping", lambda: "stopping" in packd.log())
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        self.assertIn(process.wait(20), (0, 1))
        packd.process = None
        packd.start()
        packd.stop()
        push.channel.close()
        fetch.channel.close()

    def test_a_feed_that_is_no_longer_configured(self):
        """It is named at each start until it is deleted, which needs no configuration of it; then its name is free and its space is back."""
        packd = harness.Daemon(feeds=[FEED, {**FEED, "name": "old"}])
        packd.start()
        push = peer.Push(packd.address, feed="old", stream="a")
        push.welcome()
        push.block([[1] * 60] * 3000)
        push.wait_durable(3000)
        push.close()
        peer.open_job(packd.address, feed="old")
        packd.stop()
        self.assertNotIn("feed_not_configured", packd.log())
        packd.config["feeds"] = [FEED]
        packd.start()
        self.assertRegex(packd.log(), "feed_not_configured feed=old .*packctl delete-feed --feed old")
        held = packd.metrics()["packd_log_bytes"]
        self.assertIn("feed old is empty", packd.packctl("delete-feed", "--feed", "old").stdout)
        harness.wait_for("its data is gone", lambda: " feed_purged feed=old" in packd.log())
        harness.wait_for("its space is free", lambda: packd.metrics()["packd_log_bytes"] < held - 3000 * 60 * 4)
        again = packd.packctl("delete-feed", "--feed", "old", check=False)
        self.assertIn("neither the configuration nor the log has a feed 'old'", again.stderr)
        self.assertNotEqual(again.returncode, 0)
        packd.kill()
        packd.start()
        self.assertEqual(packd.log().count("feed_not_configured"), 1)
        packd.stop()
        packd.config["feeds"] = [FEED, {**FEED, "name": "old"}]
        with packd:
            push = peer.Push(packd.address, feed="old", stream="a")
            self.assertEqual(push.welcome().next_seq, 0)
            push.close()

    def test_health_follows_the_truth(self):
        def health(packd, service=""):
            with peer.channel(packd.address) as channel:
                call = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=lambda b: b, response_deserializer=lambda b: b)
                return call(b"\n" + bytes([len(service)]) + service.encode() if service else b"", timeout=20)
        with harness.Daemon(feeds=[FEED]) as packd:
            self.assertEqual(health(packd), b"\x08\x01")
            self.assertEqual(packd.http("/healthz")[0], 200)
            packd.packctl("drain")
            self.assertEqual(packd.http("/readyz")[1], "draining\n")
            harness.wait_for("NOT_SERVING", lambda: health(packd, "packd.v1.Feed") == b"\x08\x02")
            self.assertEqual(packd.http("/livez")[0], 200)
            harness.wait_for("the page", lambda: json.loads(packd.http("/status.json")[1])["readiness"] == "draining")

    def test_drain(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            push = peer.Push(packd.address, stream="a")
            push.welcome()
            push.block([[1] * 100] * 100)
            push.wait_durable(100)
            fetch = peer.Fetch(packd.address, peer.open_job(packd.address))
            self.assertIsNotNone(fetch.next())
            packd.packctl("drain")
            self.assertEqual(packd.http("/readyz")[0], 503)
            self.assertEqual(packd.http("/livez")[0], 200)
            self.assertIsNotNone(fetch.next(), "running fetches go on")
            refused = peer.Push(packd.address, stream="b").fails()
            self.assertEqual(refused.code(), peer.grpc.StatusCode.UNAVAILABLE)
            self.assertEqual(peer.error_detail(refused).reason, "DRAINING")
            open_calls = packd.start_packctl("--json", "drain", "--wait", "30s")
            fetch.close()
            push.close()
            reply = json.loads(open_calls.communicate(timeout=harness.DEADLINE_S)[0])
            self.assertEqual((int(reply.get("push_calls", 0)), int(reply.get("fetch_calls", 0))), (0, 0), "--wait returns when all are gone")
            self.assertEqual(open_calls.returncode, 0)


if __name__ == "__main__":
    unittest.main()
